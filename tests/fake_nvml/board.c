/* The mapped board, the handles into it, and the guard every device call passes. */
#include "fake_nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HANG_POLL_US 10000

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static _Atomic(struct board_header *) board;
static struct device devices[MAX_ENTITIES];

const struct board_header *current_board(void)
{
  return atomic_load(&board);
}

static bool is_board(const struct board_header *header, size_t size)
{
  return header->magic == BOARD_MAGIC && header->gpu_count <= MAX_ENTITIES &&
         size >= sizeof(struct board_header) + header->gpu_count * sizeof(struct board_gpu);
}

static int map_board(int file, struct board_header **header)
{
  struct stat status;
  if (fstat(file, &status) != 0 || (size_t)status.st_size < sizeof(struct board_header))
    return NVML_ERROR_UNKNOWN;
  size_t size = (size_t)status.st_size;
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED)
    return NVML_ERROR_UNKNOWN;
  *header = memory;
  int result = is_board(*header, size) ? (*header)->init_result : NVML_ERROR_UNKNOWN;
  if (result != NVML_SUCCESS)
    munmap(memory, size);
  return result;
}

static int load_board(void)
{
  const char *path = getenv("FAKE_NVML_BOARD");
  int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0)
    return NVML_ERROR_DRIVER_NOT_LOADED;
  struct board_header *header = NULL;
  int result = map_board(file, &header);
  close(file);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned index = 0; index < MAX_ENTITIES; index++)
    devices[index].index = index;
  atomic_store(&board, header);
  return NVML_SUCCESS;
}

int open_board(void)
{
  pthread_mutex_lock(&opening);
  int result = users > 0 ? NVML_SUCCESS : load_board();
  if (result == NVML_SUCCESS)
    users++;
  pthread_mutex_unlock(&opening);
  return result;
}

/* Once too often is no error, whatever nvml.h says. The memory stays mapped: another thread may
   hang in a call on it. */
int close_board(void)
{
  pthread_mutex_lock(&opening);
  if (users > 0 && --users == 0)
    atomic_store(&board, NULL);
  pthread_mutex_unlock(&opening);
  return NVML_SUCCESS;
}

const struct board_gpu *board_entity(const struct board_header *header, unsigned index)
{
  return (const struct board_gpu *)(const void *)(header + 1) + index;
}

struct device *device_at(unsigned index)
{
  return &devices[index];
}

bool is_instance_of(const struct target *parent, unsigned index)
{
  const struct board_gpu *gpu = board_entity(parent->header, index);
  return parent->gpu->mig_enabled && gpu->kind == KIND_MIG && gpu->parent == parent->index;
}

static bool is_handle(const struct device *device, const struct board_header *header)
{
  return device >= devices && device < devices + header->gpu_count;
}

static bool hangs(const struct board_gpu *gpu)
{
  return __atomic_load_n(&gpu->hang, __ATOMIC_RELAXED) != 0;
}

/* Arguments are looked at once the library is open, and before the device is. */
int checked(bool valid, int otherwise)
{
  if (current_board() == NULL)
    return NVML_ERROR_UNINITIALIZED;
  return valid ? NVML_SUCCESS : otherwise;
}

/* What an entity and its parent (itself, for a GPU) make of a call, in the order a driver
   would: it hangs, it is slow, the device is gone, this one call fails. Takes no lock, so
   that one hanging GPU leaves the others alone. */
int guard(const struct device *device, int call, struct target *target)
{
  const struct board_header *header = current_board();
  if (header == NULL)
    return NVML_ERROR_UNINITIALIZED;
  if (!is_handle(device, header))
    return NVML_ERROR_INVALID_ARGUMENT;
  const struct board_gpu *gpu = board_entity(header, device->index);
  const struct board_gpu *parent = board_entity(header, gpu->parent);
  *target = (struct target){header, gpu, device->index};
  while (hangs(gpu) || hangs(parent))
    sleep_us(HANG_POLL_US);
  if (call != NO_CALL)
    sleep_us(gpu->call_delay_us[call]);
  if (gpu->device_result != NVML_SUCCESS)
    return gpu->device_result;
  if (parent->device_result != NVML_SUCCESS)
    return parent->device_result;
  return call == NO_CALL ? NVML_SUCCESS : gpu->call_result[call];
}

uint64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t timestamp_us(const struct board_header *header, uint64_t monotonic_ns)
{
  return (uint64_t)(((int64_t)monotonic_ns + header->timestamp_offset_ns) / 1000);
}

void sleep_us(uint64_t microseconds)
{
  struct timespec left = {(time_t)(microseconds / 1000000),
                          (long)(microseconds % 1000000) * 1000};
  while (microseconds > 0 && nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

int copy_text(const char *text, char *out, unsigned size)
{
  size_t length = strlen(text) + 1;
  if (length > size)
    return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text, length);
  return NVML_SUCCESS;
}
