/* Event sets: XIDs as they happen. */
#include "fake_nvml.h"

#include <stdatomic.h>
#include <stdlib.h>

#define nvmlEventTypeXidCriticalError 8u
#define POLL_US 500000u

struct event_set {
  uint64_t seen;
  bool registered[MAX_ENTITIES];
};

static uint64_t events_so_far(const struct board_header *header)
{
  return __atomic_load_n(&header->event_count, __ATOMIC_ACQUIRE);
}

API int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *types)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result == NVML_SUCCESS)
    *types = nvmlEventTypeXidCriticalError;
  return result;
}

static atomic_int open_sets;

/* No NVML call: how many sets nobody has freed. */
API int fake_nvml_open_sets(void)
{
  return atomic_load(&open_sets);
}

API int nvmlEventSetCreate(struct event_set **set)
{
  const struct board_header *header = current_board();
  if (header == NULL)
    return NVML_ERROR_UNINITIALIZED;
  *set = calloc(1, sizeof **set);
  if (*set == NULL)
    return NVML_ERROR_MEMORY;
  (*set)->seen = events_so_far(header);
  atomic_fetch_add(&open_sets, 1);
  return NVML_SUCCESS;
}

API int nvmlEventSetFree(struct event_set *set)
{
  if (current_board() == NULL)
    return NVML_ERROR_UNINITIALIZED;
  free(set);
  atomic_fetch_sub(&open_sets, 1);
  return NVML_SUCCESS;
}

API int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types,
                                 struct event_set *set)
{
  struct target target;
  int result = guard(device, CALL_DeviceRegisterEvents, &target);
  if (result != NVML_SUCCESS)
    return result;
  if ((types & ~(unsigned long long)nvmlEventTypeXidCriticalError) != 0)
    return NVML_ERROR_NOT_SUPPORTED;
  set->registered[target.index] = types != 0;
  return NVML_SUCCESS;
}

#if DRIVER_BRANCH >= 450

/* The ring keeps MAX_EVENTS; who comes later has missed the rest. */
static bool next_event(const struct board_header *header, struct event_set *set,
                       struct event_data *data)
{
  uint64_t count = events_so_far(header);
  if (count > set->seen + MAX_EVENTS)
    set->seen = count - MAX_EVENTS;
  while (set->seen < count) {
    const struct board_event *event = &header->events[set->seen++ % MAX_EVENTS];
    if (event->gpu >= header->gpu_count || !set->registered[event->gpu])
      continue;
    *data = (struct event_data){device_at(event->gpu), nvmlEventTypeXidCriticalError, event->xid,
                                NOT_IN_MIG, NOT_IN_MIG};
    return true;
  }
  return false;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
  uint64_t deadline = now_ns() + timeout_ms * UINT64_C(1000000);
  for (;;) {
    /* Asked anew each time: the library may be shut down meanwhile. */
    const struct board_header *header = current_board();
    if (header == NULL)
      return NVML_ERROR_UNINITIALIZED;
    if (next_event(header, set, data))
      return NVML_SUCCESS;
    if (now_ns() >= deadline)
      return NVML_ERROR_TIMEOUT;
    sleep_us(POLL_US);
  }
}

#endif
