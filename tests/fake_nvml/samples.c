/* The sample rings: utilization per window of the recent past. */
#include "fake_nvml.h"

#include <string.h>

#define LAST_PID 4194303u
#define IMPOSSIBLE_PERCENT 808334905u

/* Windows first .. first + count - 1; window k covers slots k * slots up to (k + 1) * slots. */
struct ring {
  uint64_t first;
  unsigned count, slots;
};

static uint64_t window_end_ns(const struct ring *ring, uint64_t window)
{
  return (window + 1) * ring->slots * (uint64_t)SLOT_NS;
}

/* The windows that ended, newest last, since the board exists. */
static struct ring completed_windows(const struct target *target, unsigned most)
{
  struct ring ring = {.slots = target->gpu->period_slots > 0 ? target->gpu->period_slots : 1};
  uint64_t window_ns = ring.slots * (uint64_t)SLOT_NS;
  uint64_t end = now_ns() / window_ns;
  uint64_t oldest = target->header->created_ns / window_ns;
  ring.first = end > most ? end - most : 0;
  if (ring.first < oldest)
    ring.first = oldest;
  ring.count = end > ring.first ? (unsigned)(end - ring.first) : 0;
  return ring;
}

static void sums_of(const struct target *target, enum lane lane, const struct ring *ring,
                    uint64_t *sums)
{
  window_sums(target, lane, ring->first * ring->slots, ring->slots, ring->count, sums);
}

static unsigned percent(uint64_t lane_ns, const struct ring *ring)
{
  uint64_t window_ns = ring->slots * (uint64_t)SLOT_NS;
  uint64_t rounded = (lane_ns * 100 + window_ns / 2) / window_ns;
  return rounded > 100 ? 100 : (unsigned)rounded;
}

static unsigned gpu_percent(const struct target *target, uint64_t busy, const struct ring *ring)
{
  unsigned stuck = target->gpu->stuck_utilization;
  return stuck != 0 ? stuck : percent(busy, ring);
}

static unsigned memory_percent(const struct target *target, uint64_t busy, const struct ring *ring)
{
  return target->gpu->memory_always_zero ? 0 : percent(busy, ring);
}

static bool in_mig_mode(const struct target *target)
{
  return target->gpu->mig_enabled || target->gpu->kind == KIND_MIG;
}

/* Some parts record no utilization while they idle. */
static bool ring_is_empty(const struct target *target, const struct ring *ring)
{
  if (!target->gpu->ring_empty_when_idle)
    return false;
  uint64_t sums[MAX_WINDOWS], busy = target->gpu->stuck_utilization;
  sums_of(target, LANE_busy_ns, ring, sums);
  for (unsigned i = 0; i < ring->count; i++)
    busy += sums[i];
  return busy == 0;
}

static struct ring newer_than(const struct target *target, uint64_t last_seen_us)
{
  unsigned most = target->gpu->ring_samples;
  struct ring ring = completed_windows(target, most < MAX_WINDOWS ? most : MAX_WINDOWS);
  if (ring_is_empty(target, &ring))
    ring.count = 0;
  while (ring.count > 0 &&
         timestamp_us(target->header, window_end_ns(&ring, ring.first)) <= last_seen_us) {
    ring.first++;
    ring.count--;
  }
  return ring;
}

static unsigned lane_percent(const struct target *target, enum lane lane, uint64_t busy,
                             const struct ring *ring)
{
  if (lane == LANE_busy_ns)
    return gpu_percent(target, busy, ring);
  return lane == LANE_memory_ns ? memory_percent(target, busy, ring) : percent(busy, ring);
}

static void write_samples(const struct target *target, enum lane lane, const struct ring *ring,
                          struct ring_sample *samples)
{
  uint64_t sums[MAX_WINDOWS];
  sums_of(target, lane, ring, sums);
  for (unsigned i = 0; i < ring->count; i++) {
    samples[i].timeStamp = timestamp_us(target->header, window_end_ns(ring, ring->first + i));
    samples[i].sampleValue.ull = 0;
    samples[i].sampleValue.uint = lane_percent(target, lane, sums[i], ring);
  }
}

static bool has_engine(const struct target *target, enum lane lane)
{
  return (target->gpu->engines >> (lane - LANE_encoder_ns) & 1) != 0;
}

/* The lane of a ring's samples; LANE_index: there is no such ring. */
static enum lane lane_of(const struct target *target, unsigned type)
{
  static const enum lane lanes[] = {
      [NVML_GPU_UTILIZATION_SAMPLES] = LANE_busy_ns,
      [NVML_MEMORY_UTILIZATION_SAMPLES] = LANE_memory_ns,
      [NVML_ENC_UTILIZATION_SAMPLES] = LANE_encoder_ns,
      [NVML_DEC_UTILIZATION_SAMPLES] = LANE_decoder_ns,
      [NVML_JPG_UTILIZATION_SAMPLES] = LANE_jpeg_ns,
      [NVML_OFA_UTILIZATION_SAMPLES] = LANE_ofa_ns,
  };
  enum lane lane = type < sizeof lanes / sizeof lanes[0] ? lanes[type] : LANE_index;
  if (lane < LANE_encoder_ns)
    return lane;
  return has_engine(target, lane) && !target->gpu->no_engine_rings ? lane : LANE_index;
}

/* Oldest first. A buffer that is too small gets the newest samples that fit. */
API int nvmlDeviceGetSamples(struct device *device, unsigned type, unsigned long long last_seen_us,
                             unsigned *value_type, unsigned *count, struct ring_sample *samples)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetSamples, &target);
  if (result != NVML_SUCCESS)
    return result;
  enum lane lane = lane_of(&target, type);
  if (lane == LANE_index || in_mig_mode(&target))
    return NVML_ERROR_NOT_SUPPORTED;
  struct ring ring = newer_than(&target, last_seen_us);
  if (ring.count == 0)
    return NVML_ERROR_NOT_FOUND;
  *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (samples == NULL) {
    *count = MAX_WINDOWS;
    return NVML_SUCCESS;
  }
  if (ring.count > *count) {
    ring.first += ring.count - *count;
    ring.count = *count;
  }
  write_samples(&target, lane, &ring, samples);
  *count = ring.count;
  return NVML_SUCCESS;
}

API int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *utilization)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetUtilizationRates, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (in_mig_mode(&target))
    return NVML_ERROR_NOT_SUPPORTED;
  struct ring ring = completed_windows(&target, 1);
  uint64_t busy = 0, memory = 0;
  sums_of(&target, LANE_busy_ns, &ring, &busy);
  sums_of(&target, LANE_memory_ns, &ring, &memory);
  utilization->gpu = gpu_percent(&target, busy, &ring);
  utilization->memory = memory_percent(&target, memory, &ring);
  return NVML_SUCCESS;
}

/* One window of a video engine, and its length in microseconds. */
static int engine_utilization(const struct device *device, enum lane lane, unsigned *utilization,
                              unsigned *period_us)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetEngineUtilization, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (!has_engine(&target, lane) || in_mig_mode(&target))
    return NVML_ERROR_NOT_SUPPORTED;
  struct ring ring = completed_windows(&target, 1);
  uint64_t busy = 0;
  sums_of(&target, lane, &ring, &busy);
  *utilization = percent(busy, &ring);
  *period_us = (unsigned)(ring.slots * (uint64_t)SLOT_NS / 1000);
  return NVML_SUCCESS;
}

API int nvmlDeviceGetEncoderUtilization(struct device *device, unsigned *utilization,
                                       unsigned *period_us)
{
  return engine_utilization(device, LANE_encoder_ns, utilization, period_us);
}

API int nvmlDeviceGetDecoderUtilization(struct device *device, unsigned *utilization,
                                       unsigned *period_us)
{
  return engine_utilization(device, LANE_decoder_ns, utilization, period_us);
}

#if DRIVER_BRANCH >= 530
API int nvmlDeviceGetJpgUtilization(struct device *device, unsigned *utilization,
                                       unsigned *period_us)
{
  return engine_utilization(device, LANE_jpeg_ns, utilization, period_us);
}

API int nvmlDeviceGetOfaUtilization(struct device *device, unsigned *utilization,
                                       unsigned *period_us)
{
  return engine_utilization(device, LANE_ofa_ns, utilization, period_us);
}
#endif

/* Entries of processes, of both calls; those that fit are written, `count` goes on. */
struct use_list {
  struct process_sample *samples;
  struct process_use *uses;
  unsigned room, count;
};

static void add_use(struct use_list *list, unsigned pid, uint64_t us, unsigned percent)
{
  unsigned at = list->count++;
  if (at >= list->room)
    return;
  if (list->samples != NULL)
    list->samples[at] = (struct process_sample){.pid = pid, .timeStamp = us, .smUtil = percent};
  else
    list->uses[at] = (struct process_use){.timeStamp = us, .pid = pid, .smUtil = percent};
}

struct holders {
  unsigned pids[MAX_PROCESSES];
  uint32_t used_us[MAX_WINDOWS][MAX_PROCESSES];
};

static void read_holders(const struct board_gpu *gpu, const struct ring *ring,
                         struct holders *holders)
{
  struct read read = {0};
  do {
    read_begin(gpu, &read);
    memset(holders, 0, sizeof *holders);
    for (unsigned row = 0; row < MAX_PROCESSES; row++)
      holders->pids[row] = gpu->processes[row].pid;
    for (unsigned i = 0; i < ring->count * ring->slots; i++) {
      uint64_t slot = ring->first * ring->slots + i, at = slot % SLOTS;
      if (gpu->slots[at * LANES + LANE_index] != slot)
        continue;
      for (unsigned row = 0; row < MAX_PROCESSES; row++)
        holders->used_us[i / ring->slots][row] += gpu->process_us[at * MAX_PROCESSES + row];
    }
  } while (read_torn(gpu, &read));
}

/* A driver of many entries splits each window's share. */
static void add_windows(struct use_list *list, const struct target *target,
                        const struct ring *ring, const struct holders *holders, unsigned row)
{
  unsigned entries = target->gpu->process_entries > 0 ? target->gpu->process_entries : 1;
  for (unsigned window = 0; window < ring->count; window++) {
    uint64_t at = timestamp_us(target->header, window_end_ns(ring, ring->first + window));
    unsigned share = percent(holders->used_us[window][row] * 1000ull, ring);
    for (unsigned i = 0; share > 0 && i < entries; i++)
      add_use(list, holders->pids[row], at, share / entries + (i < share % entries));
  }
}

/* The mean of the new windows, at the last one with work. */
static void add_mean(struct use_list *list, const struct target *target, const struct ring *ring,
                     const struct holders *holders, unsigned row)
{
  uint64_t used_us = 0, at = 0;
  for (unsigned window = 0; window < ring->count; window++) {
    used_us += holders->used_us[window][row];
    if (holders->used_us[window][row] > 0)
      at = timestamp_us(target->header, window_end_ns(ring, ring->first + window));
  }
  if (used_us > 0)
    add_use(list, holders->pids[row], at, percent(used_us * 1000 / ring->count, ring));
}

static int list_use(const struct device *device, int call, uint64_t last_seen_us,
                    struct use_list *list)
{
  struct target target;
  int result = guard(device, call, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (in_mig_mode(&target))
    return NVML_ERROR_NOT_SUPPORTED;
  struct ring ring = newer_than(&target, last_seen_us);
  struct holders holders;
  read_holders(target.gpu, &ring, &holders);
  for (unsigned row = 0; row < MAX_PROCESSES; row++) {
    if (holders.pids[row] == 0)
      continue;
    if (target.gpu->process_means)
      add_mean(list, &target, &ring, &holders, row);
    else
      add_windows(list, &target, &ring, &holders, row);
  }
  for (unsigned i = 0; ring.count > 0 && i < target.gpu->process_zombies; i++)
    add_use(list, LAST_PID - i, timestamp_us(target.header, window_end_ns(&ring, ring.first)),
            IMPOSSIBLE_PERCENT);
  if (list->count == 0)
    return NVML_ERROR_NOT_FOUND;
  return list->count > list->room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API int nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *samples,
                                        unsigned *count, unsigned long long last_seen_us)
{
  struct use_list list = {.samples = samples, .room = samples == NULL ? 0 : *count};
  int result = list_use(device, CALL_DeviceGetProcessUtilization, last_seen_us, &list);
  if (list.count > 0)
    *count = list.count;
  return result;
}

#if DRIVER_BRANCH >= 545
API int nvmlDeviceGetProcessesUtilizationInfo(struct device *device,
                                              struct process_use_request *request)
{
  int result = checked(request != NULL, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  if (request->version != nvmlProcessesUtilizationInfo_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct use_list list = {.uses = request->procUtilArray,
                          .room = request->procUtilArray ? request->processSamplesCount : 0};
  result = list_use(device, CALL_DeviceGetProcessesUtilizationInfo, request->lastSeenTimeStamp,
                    &list);
  if (list.count > 0)
    request->processSamplesCount = list.count;
  return result;
}
#endif
