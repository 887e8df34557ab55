/* The sample rings: power, utilization and clocks per window of the recent past. */
#include "fake_nvml.h"

/* What the size call answers, whatever the ring holds. */
enum { RING_ROOM = 100, POWER_ROOM = MAX_WINDOWS };

/* Windows first .. first + count - 1; window k covers slots k * slots up to (k + 1) * slots. */
struct ring {
  uint64_t first;
  unsigned count, slots;
};

static unsigned ring_room(unsigned type)
{
  return type == NVML_TOTAL_POWER_SAMPLES ? POWER_ROOM : RING_ROOM;
}

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

static void fill_from_lane(const struct target *target, unsigned type, const struct ring *ring,
                           unsigned *values)
{
  static const enum lane lanes[] = {LANE_energy_uj, LANE_busy_ns, LANE_memory_ns};
  uint64_t sums[MAX_WINDOWS];
  sums_of(target, lanes[type], ring, sums);
  for (unsigned i = 0; i < ring->count; i++) {
    if (type == NVML_GPU_UTILIZATION_SAMPLES)
      values[i] = gpu_percent(target, sums[i], ring);
    else if (type == NVML_MEMORY_UTILIZATION_SAMPLES)
      values[i] = memory_percent(target, sums[i], ring);
    else
      values[i] = target->gpu->idle_mw + (unsigned)(sums[i] * 1000000 / (ring->slots * SLOT_NS));
  }
}

static void fill_values(const struct target *target, unsigned type, const struct ring *ring,
                        unsigned *values)
{
  if (type <= NVML_MEMORY_UTILIZATION_SAMPLES) {
    fill_from_lane(target, type, ring, values);
    return;
  }
  unsigned constant = 0;
  if (type == NVML_PROCESSOR_CLK_SAMPLES)
    constant = target->gpu->clock_mhz[NVML_CLOCK_SM];
  else if (type == NVML_MEMORY_CLK_SAMPLES)
    constant = target->gpu->clock_mhz[NVML_CLOCK_MEM];
  for (unsigned i = 0; i < ring->count; i++)
    values[i] = constant;
}

static bool in_mig_mode(const struct target *target)
{
  return target->gpu->mig_enabled || target->gpu->kind == KIND_MIG;
}

static bool is_utilization(unsigned type)
{
  return type >= NVML_GPU_UTILIZATION_SAMPLES && type <= NVML_DEC_UTILIZATION_SAMPLES;
}

/* Some parts record no utilization while they idle. */
static bool ring_is_empty(const struct target *target, unsigned type, const struct ring *ring)
{
  if (!target->gpu->ring_empty_when_idle || !is_utilization(type))
    return false;
  uint64_t sums[MAX_WINDOWS], busy = target->gpu->stuck_utilization;
  sums_of(target, LANE_busy_ns, ring, sums);
  for (unsigned i = 0; i < ring->count; i++)
    busy += sums[i];
  return busy == 0;
}

static struct ring newer_than(const struct target *target, unsigned type, uint64_t last_seen_us)
{
  unsigned most = target->gpu->ring_samples;
  struct ring ring = completed_windows(target, most < ring_room(type) ? most : ring_room(type));
  if (ring_is_empty(target, type, &ring))
    ring.count = 0;
  while (ring.count > 0 &&
         timestamp_us(target->header, window_end_ns(&ring, ring.first)) <= last_seen_us) {
    ring.first++;
    ring.count--;
  }
  return ring;
}

static void write_samples(const struct target *target, unsigned type, const struct ring *ring,
                          struct ring_sample *samples)
{
  unsigned values[MAX_WINDOWS];
  fill_values(target, type, ring, values);
  for (unsigned i = 0; i < ring->count; i++) {
    samples[i].timeStamp = timestamp_us(target->header, window_end_ns(ring, ring->first + i));
    samples[i].sampleValue.ull = 0;
    samples[i].sampleValue.uint = values[i];
  }
}

/* Oldest first. A buffer that is too small gets the newest samples that fit. */
API int nvmlDeviceGetSamples(struct device *device, unsigned type, unsigned long long last_seen_us,
                             unsigned *value_type, unsigned *count, struct ring_sample *samples)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetSamples, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (type > NVML_MEMORY_CLK_SAMPLES || (in_mig_mode(&target) && is_utilization(type)))
    return NVML_ERROR_NOT_SUPPORTED;
  struct ring ring = newer_than(&target, type, last_seen_us);
  if (ring.count == 0)
    return NVML_ERROR_NOT_FOUND;
  *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (samples == NULL) {
    *count = ring_room(type);
    return NVML_SUCCESS;
  }
  if (ring.count > *count) {
    ring.first += ring.count - *count;
    ring.count = *count;
  }
  write_samples(&target, type, &ring, samples);
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
