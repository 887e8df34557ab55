/* What the GPUs did, read from the slots: work done, power, energy, throttled time. */
#include "fake_nvml.h"

#include <string.h>

/* Longer than any writer stays inside. */
#define PATIENCE_NS 200000000u
#define RETRY_US 50
#define MAX_TRIES 2000

static uint64_t sequence_of(const struct board_gpu *gpu)
{
  return __atomic_load_n(&gpu->sequence, __ATOMIC_ACQUIRE);
}

/* A sequence that stays odd belongs to a writer that died; one that moves to a living one. */
void read_begin(const struct board_gpu *gpu, struct read *read)
{
  uint64_t moved_ns = now_ns();
  read->sequence = sequence_of(gpu);
  while ((read->sequence & 1) != 0 && now_ns() < moved_ns + PATIENCE_NS) {
    sleep_us(RETRY_US);
    uint64_t sequence = sequence_of(gpu);
    if (sequence != read->sequence)
      moved_ns = now_ns();
    read->sequence = sequence;
  }
}

bool read_torn(const struct board_gpu *gpu, struct read *read)
{
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return sequence_of(gpu) != read->sequence && read->tries++ < MAX_TRIES;
}

static const uint64_t *slot_row(const struct board_gpu *gpu, uint64_t slot)
{
  return &gpu->slots[(slot % SLOTS) * LANES];
}

/* Work is booked ahead: what runs now or waits in the queue is not done yet. */
static void subtract_pending(const struct board_gpu *gpu, uint64_t slot, struct amounts *done)
{
  for (unsigned row = 0; row < SLOTS; row++) {
    const uint64_t *lanes = slot_row(gpu, row);
    if (lanes[LANE_index] < slot)
      continue;
    for (unsigned lane = 1; lane < LANES; lane++)
      done->lane[lane] -= lanes[lane] < done->lane[lane] ? lanes[lane] : done->lane[lane];
  }
}

static void entity_done(const struct board_gpu *gpu, uint64_t slot, struct amounts *done)
{
  struct read read = {0};
  do {
    read_begin(gpu, &read);
    memcpy(done->lane, gpu->submitted, sizeof done->lane);
    subtract_pending(gpu, slot, done);
  } while (read_torn(gpu, &read));
}

static void entity_window_sums(const struct board_gpu *gpu, enum lane lane, uint64_t first_slot,
                               unsigned window_slots, unsigned windows, uint64_t *sums)
{
  struct read read = {0};
  do {
    read_begin(gpu, &read);
    memset(sums, 0, windows * sizeof *sums);
    for (unsigned i = 0; i < windows * window_slots; i++) {
      const uint64_t *row = slot_row(gpu, first_slot + i);
      if (row[LANE_index] == first_slot + i)
        sums[i / window_slots] += row[lane];
    }
  } while (read_torn(gpu, &read));
}

/* Time on an instance counts for the slices it has; bytes and energy count in full. */
static uint64_t share_of_gpu(uint64_t amount, unsigned lane, unsigned slices)
{
  return lane >= LANE_pcie_receive_bytes ? amount : amount * slices / 7;
}

void done_until(const struct target *target, uint64_t slot, struct amounts *done)
{
  entity_done(target->gpu, slot, done);
  for (unsigned index = 0; index < target->header->gpu_count; index++) {
    if (!is_instance_of(target, index))
      continue;
    const struct board_gpu *instance = board_entity(target->header, index);
    struct amounts part;
    entity_done(instance, slot, &part);
    for (unsigned lane = 1; lane < LANES; lane++)
      done->lane[lane] += share_of_gpu(part.lane[lane], lane, instance->slices);
  }
}

void window_sums(const struct target *target, enum lane lane, uint64_t first_slot,
                 unsigned window_slots, unsigned windows, uint64_t *sums)
{
  entity_window_sums(target->gpu, lane, first_slot, window_slots, windows, sums);
  for (unsigned index = 0; index < target->header->gpu_count; index++) {
    if (!is_instance_of(target, index))
      continue;
    const struct board_gpu *instance = board_entity(target->header, index);
    uint64_t part[MAX_WINDOWS];
    entity_window_sums(instance, lane, first_slot, window_slots, windows, part);
    for (unsigned window = 0; window < windows; window++)
      sums[window] += share_of_gpu(part[window], lane, instance->slices);
  }
}

uint64_t sum_of_last(const struct target *target, enum lane lane, unsigned slots)
{
  uint64_t sum = 0;
  window_sums(target, lane, now_ns() / SLOT_NS - slots, slots, 1, &sum);
  return sum;
}

/* GA100 and what came before Ampere give the power of the moment only. */
bool averages_power(const struct target *target)
{
  return target->gpu->architecture >= NVML_DEVICE_ARCH_AMPERE && !target->gpu->no_power_average;
}

unsigned power_mw(const struct target *target, unsigned slots)
{
  uint64_t microjoules = sum_of_last(target, LANE_energy_uj, slots);
  return target->gpu->idle_mw + (unsigned)(microjoules * 1000000 / (slots * SLOT_NS));
}

uint64_t energy_mj(const struct target *target)
{
  uint64_t now = now_ns();
  struct amounts done;
  done_until(target, now / SLOT_NS, &done);
  uint64_t idle_us = (now - target->header->created_ns) / 1000;
  return target->gpu->idle_mw * idle_us / 1000000 + done.lane[LANE_energy_uj] / 1000;
}

/* Split by a million so that days of throttling do not overflow. */
static uint64_t grown_ns(uint64_t elapsed_ns, uint64_t ppm)
{
  return elapsed_ns / 1000000 * ppm + elapsed_ns % 1000000 * ppm / 1000000;
}

uint64_t throttled_ns(const struct target *target, enum throttle reason)
{
  const struct board_gpu *gpu = target->gpu;
  uint64_t result;
  struct read read = {0};
  do {
    read_begin(gpu, &read);
    uint64_t elapsed = now_ns() - gpu->throttle_since_ns;
    result = gpu->throttle_base_ns[reason] + grown_ns(elapsed, gpu->throttle_ppm[reason]);
  } while (read_torn(gpu, &read));
  return result;
}

/* Low utilization and base clocks are never held against us. */
int policy_ns(const struct target *target, unsigned policy, uint64_t *nanoseconds)
{
  static const int reasons[NVML_PERF_POLICY_TOTAL_BASE_CLOCKS] = {
      [NVML_PERF_POLICY_POWER] = THROTTLE_power_cap,
      [NVML_PERF_POLICY_SYNC_BOOST] = THROTTLE_sync_boost,
      [NVML_PERF_POLICY_BOARD_LIMIT] = THROTTLE_board_limit,
      [NVML_PERF_POLICY_RELIABILITY] = THROTTLE_reliability,
      [NVML_PERF_POLICY_TOTAL_APP_CLOCKS] = THROTTLE_app_clocks,
  };
  if (policy > NVML_PERF_POLICY_TOTAL_BASE_CLOCKS ||
      (policy > NVML_PERF_POLICY_RELIABILITY && policy < NVML_PERF_POLICY_TOTAL_APP_CLOCKS))
    return NVML_ERROR_INVALID_ARGUMENT;
  if (policy == NVML_PERF_POLICY_THERMAL)
    *nanoseconds = throttled_ns(target, THROTTLE_sw_thermal) +
                   throttled_ns(target, THROTTLE_hw_thermal);
  else if (policy == NVML_PERF_POLICY_LOW_UTILIZATION ||
           policy == NVML_PERF_POLICY_TOTAL_BASE_CLOCKS)
    *nanoseconds = 0;
  else
    *nanoseconds = throttled_ns(target, (enum throttle)reasons[policy]);
  return NVML_SUCCESS;
}
