/* Who a device is, and its gauges and counters that one call each returns. */
#include "fake_nvml.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define PCI_DEVICE_ID 0x233010DEu
#define PCIE_WINDOW_SLOTS 2u
#define THRESHOLDS (NVML_TEMPERATURE_THRESHOLD_GPU_MAX + 1)

/* A getter of one 32-bit member of the record. */
static int gauge(const struct device *device, int call, size_t member, unsigned *value)
{
  struct target target;
  int result = guard(device, call, &target);
  if (result == NVML_SUCCESS)
    memcpy(value, (const char *)target.gpu + member, sizeof *value);
  return result;
}

API int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetUUID, &target);
  return result == NVML_SUCCESS ? copy_text(target.gpu->uuid, uuid, length) : result;
}

API int nvmlDeviceGetName(struct device *device, char *name, unsigned length)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetName, &target);
  return result == NVML_SUCCESS ? copy_text(target.gpu->name, name, length) : result;
}

API int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (target.gpu->kind != KIND_GPU)
    return NVML_ERROR_NOT_SUPPORTED;
  *minor = 0;
  for (unsigned before = 0; before < target.index; before++)
    *minor += board_entity(target.header, before)->kind == KIND_GPU;
  return NVML_SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetPciInfo, &target);
  if (result != NVML_SUCCESS)
    return result;
  const char *bus_id = target.gpu->pci_bus_id;
  *info = (struct pci_info){.pciDeviceId = PCI_DEVICE_ID};
  int parts = sscanf(bus_id, "%8x:%x:%x", &info->domain, &info->bus, &info->device);
  if (parts != 3 || strlen(bus_id) < 5)
    return NVML_ERROR_UNKNOWN;
  snprintf(info->busId, sizeof info->busId, "%.31s", bus_id);
  /* The old form has a domain of four digits instead of eight. */
  snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%.15s", bus_id + 4);
  return NVML_SUCCESS;
}

#if DRIVER_BRANCH >= 450
API int nvmlDeviceGetArchitecture(struct device *device, unsigned *architecture)
{
  return gauge(device, CALL_DeviceGetArchitecture, offsetof(struct board_gpu, architecture),
               architecture);
}
#endif

API int nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetPowerUsage, &target);
  if (result == NVML_SUCCESS)
    *milliwatts = power_mw(&target, averages_power(&target) ? SLOTS_PER_SECOND : INSTANT_SLOTS);
  return result;
}

API int nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned *milliwatts)
{
  return gauge(device, CALL_DeviceGetEnforcedPowerLimit,
               offsetof(struct board_gpu, power_limit_mw), milliwatts);
}

API int nvmlDeviceGetPowerManagementDefaultLimit(struct device *device, unsigned *milliwatts)
{
  return gauge(device, CALL_DeviceGetPowerManagementDefaultLimit,
               offsetof(struct board_gpu, power_default_limit_mw), milliwatts);
}

API int nvmlDeviceGetTotalEnergyConsumption(struct device *device, unsigned long long *millijoules)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetTotalEnergyConsumption, &target);
  if (result == NVML_SUCCESS)
    *millijoules = energy_mj(&target);
  return result;
}

API int nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *temperature)
{
  int result = checked(sensor == NVML_TEMPERATURE_GPU, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  return gauge(device, CALL_DeviceGetTemperature, offsetof(struct board_gpu, temperature),
               temperature);
}

#if DRIVER_BRANCH >= 570
API int nvmlDeviceGetTemperatureV(struct device *device, struct temperature_v1 *temperature)
{
  int result = checked(temperature != NULL, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  if (temperature->version != nvmlTemperature_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct target target;
  result = guard(device, CALL_DeviceGetTemperature, &target);
  if (result != NVML_SUCCESS)
    return result;
  bool hottest = temperature->sensorType == NVML_TEMPERATURE_GPU_MAX;
  bool known = temperature->sensorType == NVML_TEMPERATURE_GPU ||
               (hottest && target.header->driver_branch >= 615);
  if (!known)
    return NVML_ERROR_INVALID_ARGUMENT;
  temperature->temperature =
      target.gpu->temperature + (hottest ? (int)target.gpu->hottest_above : 0);
  return NVML_SUCCESS;
}

API int nvmlDeviceGetMarginTemperature(struct device *device, struct margin_temperature_v1 *margin)
{
  int result = checked(margin != NULL, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  if (margin->version != nvmlMarginTemperature_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct target target;
  result = guard(device, CALL_DeviceGetMarginTemperature, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (target.gpu->architecture < NVML_DEVICE_ARCH_ADA)
    return NVML_ERROR_NOT_SUPPORTED;
  margin->marginTemperature = target.gpu->max_operating_temperature - target.gpu->temperature;
  return NVML_SUCCESS;
}
#endif

/* Ada and newer have fields 193-196 instead. */
API int nvmlDeviceGetTemperatureThreshold(struct device *device, unsigned threshold,
                                          unsigned *value)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetTemperatureThreshold, &target);
  if (result != NVML_SUCCESS)
    return result;
  const struct board_gpu *gpu = target.gpu;
  const int values[THRESHOLDS] = {
      [NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = gpu->shutdown_temperature,
      [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = gpu->slowdown_temperature,
      [NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = gpu->max_operating_temperature,
      [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = gpu->max_operating_temperature,
  };
  if (gpu->architecture >= NVML_DEVICE_ARCH_ADA || threshold >= THRESHOLDS)
    return NVML_ERROR_NOT_SUPPORTED;
  *value = (unsigned)values[threshold];
  return NVML_SUCCESS;
}

API int nvmlDeviceGetClockInfo(struct device *device, unsigned type, unsigned *mhz)
{
  int result = checked(type < NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  size_t member = offsetof(struct board_gpu, clock_mhz) + type * sizeof(uint32_t);
  return gauge(device, CALL_DeviceGetClockInfo, member, mhz);
}

API int nvmlDeviceGetMaxClockInfo(struct device *device, unsigned type, unsigned *mhz)
{
  int result = checked(type < NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  size_t member = offsetof(struct board_gpu, clock_max_mhz) + type * sizeof(uint32_t);
  return gauge(device, CALL_DeviceGetMaxClockInfo, member, mhz);
}

/* Both names of this call share a fault. */
API int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device,
                                                  unsigned long long *reasons)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetCurrentClocksEventReasons, &target);
  if (result == NVML_SUCCESS)
    *reasons = target.gpu->event_reasons;
  return result;
}

#if DRIVER_BRANCH >= 535
API int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons)
{
  return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

API int nvmlDeviceGetSupportedClocksEventReasons(struct device *device,
                                                 unsigned long long *reasons)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result != NVML_SUCCESS)
    return result;
  bool later = target.header->driver_branch >= 615;
  *reasons = REASONS_OF_ALL | (later ? REASONS_SINCE_615 : 0);
  return NVML_SUCCESS;
}
#endif

API int nvmlDeviceGetViolationStatus(struct device *device, unsigned policy,
                                     struct violation *violation)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetViolationStatus, &target);
  if (result != NVML_SUCCESS)
    return result;
  uint64_t nanoseconds = 0;
  result = policy_ns(&target, policy, &nanoseconds);
  *violation = (struct violation){timestamp_us(target.header, now_ns()), nanoseconds};
  return result;
}

static uint64_t minus(uint64_t total, uint64_t taken)
{
  return total > taken ? total - taken : 0;
}

/* A GPU without memory of its own refuses. */
static int guard_memory(const struct device *device, struct target *target)
{
  int result = guard(device, CALL_DeviceGetMemoryInfo, target);
  bool refuses = result == NVML_SUCCESS && target->gpu->memory_total == 0;
  return refuses ? NVML_ERROR_NOT_SUPPORTED : result;
}

API int nvmlDeviceGetMemoryInfo(struct device *device, struct memory_v1 *memory)
{
  struct target target;
  int result = guard_memory(device, &target);
  if (result != NVML_SUCCESS)
    return result;
  memory->total = target.gpu->memory_total;
  memory->used = target.gpu->memory_reserved + processes_bytes(&target);
  memory->free = minus(memory->total, memory->used);
  return NVML_SUCCESS;
}

#if DRIVER_BRANCH >= 510
API int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
  int result = checked(memory != NULL, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  if (memory->version != nvmlMemory_v2)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct target target;
  result = guard_memory(device, &target);
  if (result != NVML_SUCCESS)
    return result;
  memory->total = target.gpu->memory_total;
  memory->reserved = target.gpu->memory_reserved;
  memory->used = processes_bytes(&target);
  memory->free = minus(memory->total, memory->reserved + memory->used);
  return NVML_SUCCESS;
}
#endif

API int nvmlDeviceGetTotalEccErrors(struct device *device, unsigned type, unsigned counter,
                                    unsigned long long *count)
{
  bool valid = type < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT;
  int result = checked(valid, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  struct target target;
  result = guard(device, CALL_DeviceGetTotalEccErrors, &target);
  bool corrected = type == NVML_MEMORY_ERROR_TYPE_CORRECTED;
  if (result == NVML_SUCCESS)
    *count = corrected ? target.gpu->ecc_corrected : target.gpu->ecc_uncorrected;
  return result;
}

#if DRIVER_BRANCH >= 450
API int nvmlDeviceGetRemappedRows(struct device *device, unsigned *corrected,
                                  unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetRemappedRows, &target);
  if (result != NVML_SUCCESS)
    return result;
  *corrected = target.gpu->remapped_corrected;
  *uncorrected = target.gpu->remapped_uncorrected;
  *pending = target.gpu->remap_pending;
  *failed = target.gpu->remap_failed;
  return NVML_SUCCESS;
}
#endif

API int nvmlDeviceGetPcieReplayCounter(struct device *device, unsigned *replays)
{
  return gauge(device, CALL_DeviceGetPcieReplayCounter, offsetof(struct board_gpu, pcie_replays),
               replays);
}

API int nvmlDeviceGetCurrPcieLinkGeneration(struct device *device, unsigned *generation)
{
  return gauge(device, CALL_DeviceGetCurrPcieLinkGeneration,
               offsetof(struct board_gpu, pcie_generation), generation);
}

API int nvmlDeviceGetMaxPcieLinkGeneration(struct device *device, unsigned *generation)
{
  return gauge(device, CALL_DeviceGetMaxPcieLinkGeneration,
               offsetof(struct board_gpu, pcie_generation_max), generation);
}

API int nvmlDeviceGetCurrPcieLinkWidth(struct device *device, unsigned *width)
{
  return gauge(device, CALL_DeviceGetCurrPcieLinkWidth, offsetof(struct board_gpu, pcie_width),
               width);
}

API int nvmlDeviceGetMaxPcieLinkWidth(struct device *device, unsigned *width)
{
  return gauge(device, CALL_DeviceGetMaxPcieLinkWidth, offsetof(struct board_gpu, pcie_width_max),
               width);
}

static atomic_uint pcie_throughput_calls;

/* No NVML call: lets a test prove that nobody pays for the one below. */
API unsigned fake_nvml_pcie_throughput_calls(void)
{
  return atomic_load(&pcie_throughput_calls);
}

/* Blocks for the window it measures, as the driver does. */
API int nvmlDeviceGetPcieThroughput(struct device *device, unsigned counter, unsigned *kilobytes)
{
  atomic_fetch_add(&pcie_throughput_calls, 1);
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result != NVML_SUCCESS)
    return result;
  sleep_us(PCIE_WINDOW_SLOTS * SLOT_NS / 1000);
  bool transmit = counter == NVML_PCIE_UTIL_TX_BYTES;
  enum lane lane = transmit ? LANE_pcie_transmit_bytes : LANE_pcie_receive_bytes;
  uint64_t bytes = sum_of_last(&target, lane, PCIE_WINDOW_SLOTS);
  *kilobytes = (unsigned)(bytes * SLOTS_PER_SECOND / PCIE_WINDOW_SLOTS / 1024);
  return NVML_SUCCESS;
}
