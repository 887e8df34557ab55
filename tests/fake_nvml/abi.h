/* What NVML's functions take and return: `test_headers.py` holds it to NVIDIA's own nvml.h. */
#ifndef FAKE_NVML_ABI_H
#define FAKE_NVML_ABI_H

enum result {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999,
};

enum power_scope { NVML_POWER_SCOPE_GPU = 0, NVML_POWER_SCOPE_MODULE = 1 };

enum value_type {
  NVML_VALUE_TYPE_UNSIGNED_INT = 1,
  NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3,
  NVML_VALUE_TYPE_SIGNED_INT = 5,
};

enum architecture { NVML_DEVICE_ARCH_AMPERE = 7, NVML_DEVICE_ARCH_ADA = 8 };

enum clock_type {
  NVML_CLOCK_GRAPHICS,
  NVML_CLOCK_SM,
  NVML_CLOCK_MEM,
  NVML_CLOCK_VIDEO,
  NVML_CLOCK_COUNT,
};

/* NVML_TEMPERATURE_GPU_MAX: since 615. */
enum sensor { NVML_TEMPERATURE_GPU = 0, NVML_TEMPERATURE_GPU_MAX = 1 };

enum threshold {
  NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
  NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
  NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
  NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
};

enum ecc_type {
  NVML_MEMORY_ERROR_TYPE_CORRECTED,
  NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
  NVML_MEMORY_ERROR_TYPE_COUNT,
};

enum ecc_counter { NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC, NVML_ECC_COUNTER_TYPE_COUNT };

enum pcie_counter { NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES };

enum sample_type {
  NVML_GPU_UTILIZATION_SAMPLES = 1,
  NVML_MEMORY_UTILIZATION_SAMPLES = 2,
  NVML_ENC_UTILIZATION_SAMPLES = 3,
  NVML_DEC_UTILIZATION_SAMPLES = 4,
  NVML_JPG_UTILIZATION_SAMPLES = 8,
  NVML_OFA_UTILIZATION_SAMPLES = 9,
};

enum policy {
  NVML_PERF_POLICY_POWER = 0,
  NVML_PERF_POLICY_THERMAL = 1,
  NVML_PERF_POLICY_SYNC_BOOST = 2,
  NVML_PERF_POLICY_BOARD_LIMIT = 3,
  NVML_PERF_POLICY_LOW_UTILIZATION = 4,
  NVML_PERF_POLICY_RELIABILITY = 5,
  NVML_PERF_POLICY_TOTAL_APP_CLOCKS = 10,
  NVML_PERF_POLICY_TOTAL_BASE_CLOCKS = 11,
};

/* Fields whose ids never moved. */
enum field_id {
  NVML_FI_DEV_PERF_POLICY_POWER = 74,
  NVML_FI_DEV_PERF_POLICY_RELIABILITY = 79,
  NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS = 80,
  NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS = 81,
  NVML_FI_DEV_MEMORY_TEMP = 82,
  NVML_FI_DEV_NVLINK_LINK_COUNT = 91,
  NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY = 161,
  NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY = 162,
  NVML_FI_DEV_C2C_LINK_COUNT = 170,
  NVML_FI_DEV_POWER_AVERAGE = 185,
  NVML_FI_DEV_POWER_INSTANT = 186,
  NVML_FI_DEV_POWER_CURRENT_LIMIT = 190,
  NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT = 193,
  NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT = 196,
  NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230,
};

/* Software thermal, hardware thermal, power brake: from 575 on, and from 580.82 on. */
enum event_time_575 { FIELD_575_SW_THERMAL = 251, FIELD_575_POWER_BRAKE = 253 };
enum event_time_580 { FIELD_580_SW_THERMAL = 269, FIELD_580_POWER_BRAKE = 271 };

enum gpm_metric {
  NVML_GPM_METRIC_GRAPHICS_UTIL = 1,
  NVML_GPM_METRIC_SM_UTIL = 2,
  NVML_GPM_METRIC_SM_OCCUPANCY = 3,
  NVML_GPM_METRIC_INTEGER_UTIL = 4,
  NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5,
  NVML_GPM_METRIC_DRAM_BW_UTIL = 10,
  NVML_GPM_METRIC_FP64_UTIL = 11,
  NVML_GPM_METRIC_FP32_UTIL = 12,
  NVML_GPM_METRIC_FP16_UTIL = 13,
  NVML_GPM_METRIC_PCIE_TX_PER_SEC = 20,
  NVML_GPM_METRIC_PCIE_RX_PER_SEC = 21,
  NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC = 60,
  NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 61,
  NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC = 100,
  NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC = 101,
  NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC = 102,
  NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC = 103,
};

enum { NVML_GPM_METRICS_GET_VERSION = 1, NVML_GPM_SUPPORT_VERSION = 1 };

#define nvmlTemperature_v1 0x100000Cu
#define nvmlMarginTemperature_v1 0x1000008u
#define nvmlGpuFabricInfo_v2 0x02000024u
#define nvmlGpuFabricInfo_v3 0x03000028u
#define nvmlRepairStatus_v1 0x0100000Cu
#define nvmlProcessesUtilizationInfo_v1 0x01000018u
#define nvmlMemory_v2 0x02000028u
#define nvmlEventTypeXidCriticalError 8u
/* Event reasons: those of every driver, and the two of branch 615. */
#define REASONS_OF_ALL 0x1FFull
#define REASONS_SINCE_615 0x600ull

union value {
  double dbl;
  unsigned uint;
  unsigned long long ull;
  int sint;
};

struct pci_info {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
};

struct temperature_v1 {
  unsigned version, sensorType;
  int temperature;
};

struct margin_temperature_v1 {
  unsigned version;
  int marginTemperature;
};

/* Version 2 ends before healthSummary. */
struct fabric_info_v3 {
  unsigned version;
  unsigned char clusterUuid[16];
  int status;
  unsigned cliqueId;
  unsigned char state;
  unsigned healthMask;
  unsigned char healthSummary;
};

struct repair_status {
  unsigned version, bChannelRepairPending, bTpcRepairPending;
};

struct unrepairable_memory {
  unsigned bUnrepairableMemory;
};

struct memory_v1 {
  unsigned long long total, free, used;
};

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct violation {
  unsigned long long referenceTime, violationTime;
};

struct utilization {
  unsigned gpu, memory;
};

struct ring_sample {
  unsigned long long timeStamp;
  union value sampleValue;
};

struct field {
  unsigned fieldId, scopeId;
  long long timestamp, latencyUsec;
  unsigned valueType;
  int nvmlReturn;
  union value value;
};

struct process_info_v1 {
  unsigned pid;
  unsigned long long usedGpuMemory;
};

struct process_info_v2 {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
};

struct process_info {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
};

struct process_sample {
  unsigned pid;
  unsigned long long timeStamp;
  unsigned smUtil, memUtil, encUtil, decUtil;
};

struct process_use {
  unsigned long long timeStamp;
  unsigned pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
};

struct process_use_request {
  unsigned version, processSamplesCount;
  unsigned long long lastSeenTimeStamp;
  struct process_use *procUtilArray;
};

struct event_data {
  struct device *device;
  unsigned long long eventType, eventData;
  unsigned gpuInstanceId, computeInstanceId;
};

struct metric {
  unsigned metricId;
  int nvmlReturn;
  double value;
  struct {
    const char *shortName, *longName, *unit;
  } metricInfo;
};

struct metrics_request {
  unsigned version, numMetrics;
  struct gpm_sample *sample1, *sample2;
  struct metric metrics[];
};

struct support {
  unsigned version, isSupportedDevice;
};

#endif
