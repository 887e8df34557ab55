/* A libnvidia-ml.so.1 that answers as a captured GPU did: `build.py` writes the tables of
   `answers.h` and one function per captured name. What was not captured is not supported. */
#define _GNU_SOURCE

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { INSUFFICIENT_SIZE = 7, TIMEOUT = 10, UNTOUCHED = 998 };

/* Registers hold every argument: a number, or the address of an output. */
typedef uintptr_t word;

/* An answer to the call `key`, from `ms` after the begin on. */
struct answer {
  const char *key;
  unsigned ms;
  int code;
  unsigned size;
  const char *bytes;
};

struct ring_sample {
  long long us;
  unsigned long long value;
};

struct ring {
  const char *key;
  int clock;
  unsigned type, count;
  const struct ring_sample *samples;
};

struct process_sample {
  unsigned pid;
  unsigned long long us;
  unsigned percents[4];
};

struct process_use {
  unsigned long long us;
  unsigned pid, percents[6];
};

struct process_use_request {
  unsigned version, count;
  unsigned long long mark;
  struct process_use *uses;
};

struct field {
  unsigned id, scope;
  long long timestamp, latency_us;
  unsigned type;
  int code;
  unsigned long long value;
};

struct gpm_sample {
  word device;
  unsigned instance;
  unsigned ms;
};

struct metric {
  unsigned id;
  int code;
  double value;
  const char *names[3];
};

struct metrics_request {
  unsigned version, count;
  struct gpm_sample *first, *second;
  struct metric metrics[];
};

#define API __attribute__((visibility("default")))
#include "answers.h"

enum { NO_INSTANCE = 0xFFFFFFFF, PROCESS_BYTES = 24, FIRST_UNKNOWN_PID = 4190000 };
enum { PROCESS_RINGS = 100, MAX_ENTRIES = 1024 };
enum { GPU_BIT = 16, INSTANCE_MASK = 0xFFFF, MAX_NUMBERS = 8 };

static long long began_us[2]; /* by clock: realtime, boottime */
static unsigned long long began_ns;

static unsigned long long clock_ns(clockid_t clock)
{
  struct timespec now;
  clock_gettime(clock, &now);
  return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

__attribute__((constructor)) static void begin(void)
{
  began_ns = clock_ns(CLOCK_MONOTONIC);
  began_us[0] = (long long)(clock_ns(CLOCK_REALTIME) / 1000);
  began_us[1] = (long long)(clock_ns(CLOCK_BOOTTIME) / 1000);
}

static unsigned elapsed_ms(void)
{
  return (unsigned)((clock_ns(CLOCK_MONOTONIC) - began_ns) / 1000000);
}

/* The latest answer to `key`; the first one until that was captured. */
static const struct answer *find(const char *key)
{
  int low = 0, high = ANSWERS;
  unsigned now = elapsed_ms();
  while (low < high) {
    int middle = (low + high) / 2;
    if (strcmp(answers[middle].key, key) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  const struct answer *latest = NULL;
  for (; low < ANSWERS && strcmp(answers[low].key, key) == 0; low++)
    if (latest == NULL || answers[low].ms <= now)
      latest = &answers[low];
  return latest;
}

/* A GPU and the position of its instance from 1 on, 0 for the GPU itself. */
static word handle_of(unsigned gpu, unsigned instance)
{
  return ((word)(gpu + 1) << GPU_BIT) | instance;
}

static int put_key(char *key, size_t size, word device, const char *name)
{
  unsigned gpu = (unsigned)(device >> GPU_BIT) - 1, instance = device & INSTANCE_MASK;
  if (device == 0)
    return snprintf(key, size, "/%s", name);
  if (instance == 0)
    return snprintf(key, size, "%u/%s", gpu, name);
  return snprintf(key, size, "%u:%u/%s", gpu, instance - 1, name);
}

/* Looks up `name` on `device` with `count` numbers. */
static const struct answer *find_call(word device, const char *name, const word *numbers,
                                      unsigned count)
{
  char key[160];
  int length = put_key(key, sizeof key, device, name);
  for (unsigned i = 0; i < count; i++)
    length += snprintf(key + length, sizeof key - (size_t)length, "/%u", (unsigned)numbers[i]);
  return find(key);
}

static int code_of(word device, const char *name, const word *numbers, unsigned count)
{
  const struct answer *answer = find_call(device, name, numbers, count);
  return answer == NULL ? NOT_SUPPORTED : answer->code;
}

/* A function whose outputs were captured: device, numbers, then outputs of `sizes`. The first
   `presets` members of the first output are the caller's, and count as numbers. */
static int answer_plain(const char *name, const word *words, bool has_device, unsigned numbers,
                        unsigned presets, const unsigned *sizes)
{
  word device = has_device ? *words++ : 0, key[MAX_NUMBERS];
  memcpy(key, words, numbers * sizeof *key);
  words += numbers;
  for (unsigned i = 0; i < presets; i++)
    key[numbers + i] = ((const unsigned *)*words)[i];
  const struct answer *answer = find_call(device, name, key, numbers + presets);
  if (answer == NULL || answer->code != SUCCESS)
    return answer == NULL ? NOT_SUPPORTED : answer->code;
  if (presets > 0) {
    memcpy((unsigned *)*words + presets, answer->bytes, answer->size);
    return SUCCESS;
  }
  for (const char *bytes = answer->bytes; *sizes > 0; bytes += *sizes++)
    memcpy((void *)*words++, bytes, *sizes);
  return SUCCESS;
}

static int answer_text(const char *name, const word *words, bool has_device)
{
  word device = has_device ? *words++ : 0;
  const struct answer *answer = find_call(device, name, NULL, 0);
  if (answer == NULL || answer->code != SUCCESS)
    return answer == NULL ? NOT_SUPPORTED : answer->code;
  if (strlen(answer->bytes) >= (unsigned)words[1])
    return INSUFFICIENT_SIZE;
  strcpy((char *)words[0], answer->bytes);
  return SUCCESS;
}

API int nvmlInitWithFlags(unsigned flags)
{
  (void)flags;
  return SUCCESS;
}

API int nvmlInit_v2(void)
{
  return SUCCESS;
}

API int nvmlShutdown(void)
{
  return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, word *device)
{
  word number = index;
  const struct answer *answer =
      find_call(handle_of(index, 0), "nvmlDeviceGetHandleByIndex_v2", &number, 1);
  *device = handle_of(index, 0);
  return answer == NULL ? INVALID_ARGUMENT : answer->code;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(word device, unsigned index, word *instance)
{
  word number = index;
  *instance = handle_of((unsigned)(device >> GPU_BIT) - 1, index + 1);
  return code_of(device, "nvmlDeviceGetMigDeviceHandleByIndex", &number, 1);
}

API int nvmlDeviceGetFieldValues(word device, int count, struct field *fields)
{
  const char *name = "nvmlDeviceGetFieldValues";
  for (int i = 0; i < count; i++) {
    const word numbers[] = {fields[i].id, fields[i].scope};
    const struct answer *answer = find_call(device, name, numbers, 2);
    if (answer != NULL && answer->code == UNTOUCHED)
      continue;
    fields[i].code = answer == NULL ? NOT_SUPPORTED : answer->code;
    fields[i].timestamp = began_us[0] + elapsed_ms() * 1000LL;
    fields[i].value = 0;
    if (fields[i].code == SUCCESS) {
      memcpy(&fields[i].type, answer->bytes, sizeof fields[i].type);
      memcpy(&fields[i].value, answer->bytes + sizeof fields[i].type, sizeof fields[i].value);
    }
  }
  return SUCCESS;
}

static const struct ring *find_ring(word device, unsigned kind)
{
  char key[160];
  int length = put_key(key, sizeof key, device, "");
  snprintf(key + length, sizeof key - (size_t)length, "%u", kind);
  for (int i = 0; i < RINGS; i++)
    if (strcmp(rings[i].key, key) == 0)
      return &rings[i];
  return NULL;
}

/* The ring's entries newer than `mark`, oldest first. After the capture's end its samples come
   again, a capture's length later; a ring keeps them for 10 s. */
static unsigned read_ring(const struct ring *ring, long long mark, struct ring_sample *into,
                          unsigned room)
{
  const long long kept_us = 10000000, length_us = LENGTH_MS * 1000LL;
  long long base = began_us[ring->clock], now = elapsed_ms() * 1000LL;
  long long newest_round = now / length_us;
  long long round = newest_round - kept_us / length_us - 1;
  unsigned count = 0;
  for (round = round < 0 ? 0 : round; round <= newest_round; round++)
    for (unsigned i = 0; i < ring->count; i++) {
      long long at = ring->samples[i].us + round * length_us;
      bool repeated = ring->samples[i].us > 0;
      if ((round > 0 && !repeated) || at > now || base + at <= mark)
        continue;
      if (repeated && at < now - kept_us)
        continue;
      if (count == room) {
        memmove(into, into + 1, (room - 1) * sizeof *into);
        count--;
      }
      into[count++] = (struct ring_sample){base + at, ring->samples[i].value};
    }
  return count;
}

API int nvmlDeviceGetSamples(word device, unsigned kind, unsigned long long mark, unsigned *type,
                             unsigned *count, struct ring_sample *samples)
{
  const struct ring *ring = find_ring(device, kind);
  word number = kind;
  int code = code_of(device, "nvmlDeviceGetSamples", &number, 1);
  if (ring == NULL || (code != SUCCESS && code != NOT_FOUND))
    return code;
  *type = ring->type;
  if (samples == NULL) {
    *count = ring->count;
    return SUCCESS;
  }
  *count = *count == 0 ? 0 : read_ring(ring, (long long)mark, samples, *count);
  return *count == 0 ? NOT_FOUND : SUCCESS;
}

/* REPLAY_PIDS names the processes; further ones have pids that no process has. */
static unsigned pid_at(unsigned position)
{
  const char *pids = getenv("REPLAY_PIDS");
  char *rest = NULL;
  for (unsigned i = 0; pids != NULL && *pids != '\0'; i++, pids = rest) {
    unsigned pid = (unsigned)strtoul(pids, &rest, 10);
    if (rest == pids)
      break;
    if (i == position)
      return pid;
  }
  return FIRST_UNKNOWN_PID + position;
}

/* New entries of a ring of processes: number of the process above, percent below. */
static int read_use(word device, const char *name, unsigned ring_number, unsigned long long mark,
                    unsigned room, unsigned *count, struct ring_sample entries[MAX_ENTRIES])
{
  const struct ring *ring = find_ring(device, PROCESS_RINGS + ring_number);
  int code = code_of(device, name, NULL, 0);
  if (ring == NULL || (code != SUCCESS && code != NOT_FOUND))
    return code;
  unsigned read = read_ring(ring, (long long)mark, entries, MAX_ENTRIES);
  if (read == 0)
    return NOT_FOUND;
  *count = read;
  return read > room ? INSUFFICIENT_SIZE : SUCCESS;
}

API int nvmlDeviceGetProcessUtilization(word device, struct process_sample *samples,
                                        unsigned *count, unsigned long long mark)
{
  struct ring_sample entries[MAX_ENTRIES];
  int code = read_use(device, "nvmlDeviceGetProcessUtilization", 0, mark,
                      samples == NULL ? 0 : *count, count, entries);
  for (unsigned i = 0; code == SUCCESS && i < *count; i++)
    samples[i] = (struct process_sample){pid_at((unsigned)(entries[i].value >> 32)),
                                         (unsigned long long)entries[i].us,
                                         {(unsigned)entries[i].value}};
  return code;
}

API int nvmlDeviceGetProcessesUtilizationInfo(word device, struct process_use_request *request)
{
  struct ring_sample entries[MAX_ENTRIES];
  int code = read_use(device, "nvmlDeviceGetProcessesUtilizationInfo", 1, request->mark,
                      request->uses == NULL ? 0 : request->count, &request->count, entries);
  for (unsigned i = 0; code == SUCCESS && i < request->count; i++)
    request->uses[i] = (struct process_use){(unsigned long long)entries[i].us,
                                            pid_at((unsigned)(entries[i].value >> 32)),
                                            {(unsigned)entries[i].value}};
  return code;
}

static int list_processes(word device, const char *name, unsigned *count, char *entries,
                          unsigned stride)
{
  const struct answer *answer = find_call(device, name, NULL, 0);
  if (answer == NULL || answer->code != SUCCESS)
    return answer == NULL ? NOT_SUPPORTED : answer->code;
  unsigned listed = answer->size / PROCESS_BYTES, room = entries == NULL ? 0 : *count;
  for (unsigned i = 0; i < listed && i < room; i++) {
    unsigned pid = pid_at(i);
    memset(entries + i * stride, 0, stride);
    memcpy(entries + i * stride, answer->bytes + i * PROCESS_BYTES,
           stride < PROCESS_BYTES ? stride : PROCESS_BYTES);
    memcpy(entries + i * stride, &pid, sizeof pid);
  }
  *count = listed;
  return listed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

API int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
  *sample = calloc(1, sizeof **sample);
  return *sample == NULL ? INVALID_ARGUMENT : SUCCESS;
}

API int nvmlGpmSampleFree(struct gpm_sample *sample)
{
  free(sample);
  return SUCCESS;
}

API int nvmlGpmSampleGet(word device, struct gpm_sample *sample)
{
  *sample = (struct gpm_sample){device, NO_INSTANCE, elapsed_ms()};
  return code_of(device, "nvmlGpmSampleGet", NULL, 0);
}

API int nvmlGpmMigSampleGet(word device, unsigned instance, struct gpm_sample *sample)
{
  word number = instance;
  *sample = (struct gpm_sample){device, instance, elapsed_ms()};
  return code_of(device, "nvmlGpmMigSampleGet", &number, 1);
}

/* The MIG instance whose GPU instance a sample is of. */
static word measured(const struct gpm_sample *sample)
{
  for (word position = 1; sample->instance != NO_INSTANCE && position <= INSTANCE_MASK; position++) {
    const struct answer *id =
        find_call(sample->device + position, "nvmlDeviceGetGpuInstanceId", NULL, 0);
    if (id == NULL)
      break;
    if (id->code == SUCCESS && memcmp(id->bytes, &sample->instance, sizeof sample->instance) == 0)
      return sample->device + position;
  }
  return sample->device;
}

API int nvmlGpmMetricsGet(struct metrics_request *request)
{
  const struct gpm_sample *first = request->first, *second = request->second;
  if (first == NULL || second == NULL || first->device != second->device)
    return INVALID_ARGUMENT;
  word device = measured(second);
  for (unsigned i = 0; i < request->count; i++) {
    const word number = request->metrics[i].id;
    const struct answer *answer = find_call(device, "nvmlGpmMetricsGet", &number, 1);
    request->metrics[i].code = answer == NULL ? NOT_SUPPORTED : answer->code;
    if (request->metrics[i].code == SUCCESS)
      memcpy(&request->metrics[i].value, answer->bytes, sizeof(double));
  }
  return SUCCESS;
}

API int nvmlEventSetCreate(word *set)
{
  *set = 1;
  return code_of(handle_of(0, 0), "nvmlEventSetCreate", NULL, 0);
}

API int nvmlEventSetFree(word set)
{
  (void)set;
  return SUCCESS;
}

API int nvmlDeviceRegisterEvents(word device, unsigned long long kinds, word set)
{
  (void)kinds;
  (void)set;
  return code_of(device, "nvmlDeviceRegisterEvents", NULL, 0);
}

API int nvmlEventSetWait_v2(word set, void *event, unsigned timeout_ms)
{
  const struct timespec pause = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
  (void)set;
  (void)event;
  nanosleep(&pause, NULL);
  return TIMEOUT;
}
