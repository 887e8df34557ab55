/* GPU performance monitoring: two samples and what happened between them. */
#include "fake_nvml.h"

#if DRIVER_BRANCH >= 520

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MINIMUM_SPACING_NS 100000000u
#define BYTES_PER_MIB 1048576.0

enum { FIRST_C2C_BRANCH = 575 };

/* NVML's opaque sample; `device` is NULL until it was taken. */
struct gpm_sample {
  const struct device *device;
  uint64_t time_ns;
  bool mig;
  struct amounts done;
};

enum unit { PERCENT, MIB_PER_SECOND, C2C };

static const struct source {
  unsigned id;
  enum lane lane;
  enum unit unit;
} sources[] = {
    {NVML_GPM_METRIC_GRAPHICS_UTIL, LANE_busy_ns, PERCENT},
    {NVML_GPM_METRIC_SM_UTIL, LANE_sm_active_ns, PERCENT},
    {NVML_GPM_METRIC_SM_OCCUPANCY, LANE_sm_occupancy_ns, PERCENT},
    {NVML_GPM_METRIC_INTEGER_UTIL, LANE_int_ns, PERCENT},
    {NVML_GPM_METRIC_ANY_TENSOR_UTIL, LANE_tensor_ns, PERCENT},
    {NVML_GPM_METRIC_DRAM_BW_UTIL, LANE_dram_ns, PERCENT},
    {NVML_GPM_METRIC_FP64_UTIL, LANE_fp64_ns, PERCENT},
    {NVML_GPM_METRIC_FP32_UTIL, LANE_fp32_ns, PERCENT},
    {NVML_GPM_METRIC_FP16_UTIL, LANE_fp16_ns, PERCENT},
    {NVML_GPM_METRIC_PCIE_TX_PER_SEC, LANE_pcie_transmit_bytes, MIB_PER_SECOND},
    {NVML_GPM_METRIC_PCIE_RX_PER_SEC, LANE_pcie_receive_bytes, MIB_PER_SECOND},
    {NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, LANE_nvlink_receive_bytes, MIB_PER_SECOND},
    {NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, LANE_nvlink_transmit_bytes, MIB_PER_SECOND},
    {NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC, LANE_c2c_transmit_bytes, C2C},
    {NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC, LANE_c2c_receive_bytes, C2C},
    {NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC, LANE_c2c_transmit_bytes, C2C},
    {NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC, LANE_c2c_receive_bytes, C2C},
};

/* A MIG instance has no PCIe link of its own. */
static bool has_metric(const struct target *target, const struct gpm_sample *sample,
                       const struct source *source)
{
  bool pcie = source->lane == LANE_pcie_transmit_bytes || source->lane == LANE_pcie_receive_bytes;
  if (sample->mig && pcie)
    return false;
  return source->unit != C2C || target->header->driver_branch >= FIRST_C2C_BRANCH;
}

static const struct source *find_source(const struct target *target, const struct gpm_sample *sample,
                                        unsigned id)
{
  for (unsigned i = 0; i < sizeof sources / sizeof sources[0]; i++)
    if (sources[i].id == id)
      return has_metric(target, sample, &sources[i]) ? &sources[i] : NULL;
  return NULL;
}

static double metric_value(const struct source *source, const struct gpm_sample *first,
                           const struct gpm_sample *second)
{
  double grown = (double)(second->done.lane[source->lane] - first->done.lane[source->lane]);
  double elapsed_ns = (double)(second->time_ns - first->time_ns);
  if (source->unit == PERCENT)
    return 100 * grown / elapsed_ns;
  return grown / BYTES_PER_MIB / (elapsed_ns / 1e9);
}

static void fill_metric(const struct target *target, const struct metrics_request *request,
                        struct metric *metric)
{
  const struct gpm_sample *first = request->sample1, *second = request->sample2;
  const struct source *source = find_source(target, second, metric->metricId);
  metric->nvmlReturn = source == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
  metric->value = NAN;
  if (source != NULL && second->time_ns >= first->time_ns + MINIMUM_SPACING_NS)
    metric->value = metric_value(source, first, second);
}

API int nvmlGpmMetricsGet(struct metrics_request *request)
{
  if (current_board() == NULL)
    return NVML_ERROR_UNINITIALIZED;
  if (request->version != NVML_GPM_METRICS_GET_VERSION)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const struct gpm_sample *first = request->sample1, *second = request->sample2;
  if (first == NULL || second == NULL || first->device != second->device)
    return NVML_ERROR_INVALID_ARGUMENT;
  struct target target;
  int result = guard(second->device, CALL_GpmMetricsGet, &target);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned i = 0; i < request->numMetrics; i++)
    fill_metric(&target, request, &request->metrics[i]);
  return NVML_SUCCESS;
}

static atomic_int open_samples;

/* No NVML call: how many samples nobody has freed. */
API int fake_nvml_open_samples(void)
{
  return atomic_load(&open_samples);
}

API int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
  if (current_board() == NULL)
    return NVML_ERROR_UNINITIALIZED;
  *sample = calloc(1, sizeof **sample);
  if (*sample == NULL)
    return NVML_ERROR_MEMORY;
  atomic_fetch_add(&open_samples, 1);
  return NVML_SUCCESS;
}

API int nvmlGpmSampleFree(struct gpm_sample *sample)
{
  if (current_board() == NULL)
    return NVML_ERROR_UNINITIALIZED;
  free(sample);
  atomic_fetch_sub(&open_samples, 1);
  return NVML_SUCCESS;
}

API int nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample)
{
  struct target target;
  int result = guard(device, CALL_GpmSampleGet, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (!target.gpu->gpm_supported)
    return NVML_ERROR_NOT_SUPPORTED;
  uint64_t slot = now_ns() / SLOT_NS;
  sample->device = device;
  sample->time_ns = slot * SLOT_NS;
  sample->mig = target.gpu->kind == KIND_MIG;
  done_until(&target, slot, &sample->done);
  return NVML_SUCCESS;
}

#if DRIVER_BRANCH >= 525
/* Goes by the instance's faults; the GPU's hang and loss reach it anyway. */
API int nvmlGpmMigSampleGet(struct device *device, unsigned gpu_instance, struct gpm_sample *sample)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned index = 0; index < target.header->gpu_count; index++)
    if (is_instance_of(&target, index) &&
        board_entity(target.header, index)->gpu_instance == gpu_instance)
      return nvmlGpmSampleGet(device_at(index), sample);
  return NVML_ERROR_NOT_FOUND;
}
#endif

API int nvmlGpmQueryDeviceSupport(struct device *device, struct support *support)
{
  int result = checked(support != NULL, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  if (support->version != NVML_GPM_SUPPORT_VERSION)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct target target;
  result = guard(device, NO_CALL, &target);
  if (result == NVML_SUCCESS)
    support->isSupportedDevice = target.gpu->gpm_supported;
  return result;
}

#endif
