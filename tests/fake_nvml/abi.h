/* What NVML's functions take and return: `test_headers.py` holds it to NVIDIA's own nvml.h. */
#ifndef FAKE_NVML_ABI_H
#define FAKE_NVML_ABI_H

enum result {
  NVML_SUCCESS = 0,
  NVML_UNINITIALIZED = 1,
  NVML_INVALID_ARGUMENT = 2,
  NVML_NOT_SUPPORTED = 3,
  NVML_NOT_FOUND = 6,
  NVML_INSUFFICIENT_SIZE = 7,
  NVML_DRIVER_NOT_LOADED = 9,
  NVML_TIMEOUT = 10,
  NVML_MEMORY = 20,
  NVML_VERSION_MISMATCH = 25,
  NVML_UNKNOWN = 999,
};

enum value_type { TYPE_UINT = 1, TYPE_ULL = 3, TYPE_INT = 5 };

enum architecture { ARCHITECTURE_AMPERE = 7, ARCHITECTURE_ADA = 8 };

enum clock_type { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_TYPES };

enum sensor { SENSOR_GPU = 0 };

enum threshold {
  THRESHOLD_SHUTDOWN,
  THRESHOLD_SLOWDOWN,
  THRESHOLD_MEMORY_MAX,
  THRESHOLD_GPU_MAX,
};

enum ecc_type { ECC_CORRECTED, ECC_UNCORRECTED, ECC_TYPES };

enum ecc_counter { ECC_VOLATILE, ECC_AGGREGATE, ECC_COUNTERS };

enum pcie_counter { PCIE_TRANSMIT, PCIE_RECEIVE };

enum sample_type {
  SAMPLE_POWER = 0,
  SAMPLE_GPU = 1,
  SAMPLE_MEMORY = 2,
  SAMPLE_DECODER = 4,
  SAMPLE_SM_CLOCK = 5,
  SAMPLE_MEMORY_CLOCK = 6,
};

enum policy {
  POLICY_POWER = 0,
  POLICY_THERMAL = 1,
  POLICY_SYNC_BOOST = 2,
  POLICY_BOARD_LIMIT = 3,
  POLICY_LOW_UTILIZATION = 4,
  POLICY_RELIABILITY = 5,
  POLICY_APP_CLOCKS = 10,
  POLICY_BASE_CLOCKS = 11,
};

/* Fields whose ids never moved. */
enum field_id {
  FIELD_POLICY_POWER = 74,
  FIELD_POLICY_RELIABILITY = 79,
  FIELD_POLICY_APP_CLOCKS = 80,
  FIELD_POLICY_BASE_CLOCKS = 81,
  FIELD_MEMORY_TEMPERATURE = 82,
  FIELD_ENERGY = 83,
  FIELD_PCIE_REPLAYS = 94,
  FIELD_REMAPPED_CORRECTED = 142,
  FIELD_REMAP_FAILED = 145,
  FIELD_C2C_LINKS = 170,
  FIELD_POWER_AVERAGE = 185,
  FIELD_POWER_INSTANT = 186,
  FIELD_POWER_LIMIT_MIN = 187,
  FIELD_POWER_LIMIT_CURRENT = 190,
  FIELD_LIMIT_SHUTDOWN = 193,
  FIELD_LIMIT_GPU_MAX = 196,
};

/* Software thermal, hardware thermal, power brake: from 575 on, and from 580.82 on. */
enum event_time_575 { FIELD_575_SW_THERMAL = 251, FIELD_575_POWER_BRAKE = 253 };
enum event_time_580 { FIELD_580_SW_THERMAL = 269, FIELD_580_POWER_BRAKE = 271 };

enum gpm_metric {
  GPM_GRAPHICS = 1,
  GPM_SM_ACTIVE = 2,
  GPM_SM_OCCUPANCY = 3,
  GPM_INT = 4,
  GPM_TENSOR = 5,
  GPM_DRAM = 10,
  GPM_FP64 = 11,
  GPM_FP32 = 12,
  GPM_FP16 = 13,
  GPM_PCIE_TRANSMIT = 20,
  GPM_PCIE_RECEIVE = 21,
  GPM_NVLINK_RECEIVE = 60,
  GPM_NVLINK_TRANSMIT = 61,
  GPM_C2C_TRANSMIT = 100,
  GPM_C2C_RECEIVE = 101,
  GPM_C2C_DATA_TRANSMIT = 102,
  GPM_C2C_DATA_RECEIVE = 103,
  GPM_CYCLES_ELAPSED = 248,
  GPM_CYCLES_ACTIVE = 249,
  GPM_PCIE_TRANSMITTED = 255,
  GPM_PCIE_RECEIVED = 256,
};

enum { GPM_METRICS_VERSION = 1, GPM_SUPPORT_VERSION = 1 };

#define TEMPERATURE_V1 0x100000Cu
#define MARGIN_TEMPERATURE_V1 0x1000008u
#define MEMORY_V2 0x02000028u
#define EVENT_XID 8u
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
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct temperature_v1 {
  unsigned version, sensor;
  int temperature;
};

struct margin_temperature_v1 {
  unsigned version;
  int margin;
};

struct memory_v1 {
  unsigned long long total, free, used;
};

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct violation {
  unsigned long long reference_us, violation_ns;
};

struct utilization {
  unsigned gpu, memory;
};

struct ring_sample {
  unsigned long long timestamp_us;
  union value value;
};

struct field {
  unsigned id, scope;
  long long timestamp_us, latency_us;
  unsigned value_type;
  int result;
  union value value;
};

/* Same layout in NVML's versions 2 and 3. */
struct process_info {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

struct event_data {
  struct device *device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

struct attributes {
  unsigned multiprocessors, copy_engines, decoders, encoders, jpeg_engines, optical_flow_engines;
  unsigned gpu_slices, compute_slices;
  unsigned long long memory_mb;
};

struct metric {
  unsigned id;
  int result;
  double value;
  const char *short_name, *long_name, *unit;
};

struct metrics_request {
  unsigned version, count;
  struct gpm_sample *first, *second;
  struct metric metrics[];
};

struct support {
  unsigned version, supported;
};

#endif
