/* Field values: many readings in one call, some under ids that moved between drivers. */
#include "fake_nvml.h"

#include <stdatomic.h>
#include <stdio.h>

/* FLICKERING: which of the three ids reads as an unsteady setting where it is no time. */
enum { EVENT_TIMES = 3, FLICKERING = 1 };

static int put_uint(struct field *field, unsigned value)
{
  field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
  field->value.uint = value;
  return NVML_SUCCESS;
}

static int put_ull(struct field *field, uint64_t value)
{
  field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
  field->value.ull = value;
  return NVML_SUCCESS;
}

static int put_int(struct field *field, int value)
{
  field->valueType = NVML_VALUE_TYPE_SIGNED_INT;
  field->value.sint = value;
  return NVML_SUCCESS;
}

static int policy_field(const struct target *target, struct field *field)
{
  unsigned policy = field->fieldId - NVML_FI_DEV_PERF_POLICY_POWER;
  if (field->fieldId >= NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS)
    policy = NVML_PERF_POLICY_TOTAL_APP_CLOCKS + field->fieldId -
             NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS;
  uint64_t nanoseconds = 0;
  int result = policy_ns(target, policy, &nanoseconds);
  return result == NVML_SUCCESS ? put_ull(field, nanoseconds) : result;
}

static int memory_temperature_field(const struct target *target, struct field *field)
{
  int result = target->gpu->call_result[CALL_DeviceGetMemoryTemperature];
  if (result != NVML_SUCCESS)
    return result;
  return put_uint(field, (unsigned)target->gpu->memory_temperature);
}

static int nvlink_count_field(const struct target *target, struct field *field)
{
  return put_uint(field, target->gpu->nvlinks);
}

/* Of each link alike; those of links that the GPU does not have are refused. */
static int nvlink_errors_field(const struct target *target, struct field *field)
{
  if (field->scopeId >= target->gpu->nvlinks)
    return NVML_ERROR_INVALID_ARGUMENT;
  bool replays = field->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY;
  return put_ull(field, replays ? target->gpu->nvlink_replays : target->gpu->nvlink_recoveries);
}

static int recovery_action_field(const struct target *target, struct field *field)
{
  if (target->header->driver_branch < 570)
    return NVML_ERROR_NOT_SUPPORTED;
  return put_uint(field, target->gpu->recovery_action);
}

static int c2c_links_field(const struct target *target, struct field *field)
{
  return put_uint(field, target->gpu->c2c_links);
}

/* Power of a superchip's module is that of its GPU and of its CPU. */
static int power_field(const struct target *target, struct field *field)
{
  bool module = field->scopeId == NVML_POWER_SCOPE_MODULE;
  bool average = field->fieldId == NVML_FI_DEV_POWER_AVERAGE;
  if (field->scopeId > NVML_POWER_SCOPE_MODULE || (module && target->gpu->module_limit_mw == 0) ||
      (average && !averages_power(target)))
    return NVML_ERROR_NOT_SUPPORTED;
  unsigned cpu_mw = module ? target->gpu->module_cpu_mw : 0;
  return put_uint(field, cpu_mw + power_mw(target, average ? SLOTS_PER_SECOND : INSTANT_SLOTS));
}

static int power_limit_field(const struct target *target, struct field *field)
{
  if (field->scopeId == NVML_POWER_SCOPE_GPU)
    return put_uint(field, target->gpu->power_limit_mw);
  if (field->scopeId != NVML_POWER_SCOPE_MODULE || target->gpu->module_limit_mw == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  return put_uint(field, target->gpu->module_limit_mw);
}

/* Thresholds as distances from the hottest allowed operation. */
static int temperature_limit_field(const struct target *target, struct field *field)
{
  const struct board_gpu *gpu = target->gpu;
  if (gpu->architecture < NVML_DEVICE_ARCH_ADA)
    return NVML_ERROR_NOT_SUPPORTED;
  const int offsets[] = {gpu->max_operating_temperature - gpu->shutdown_temperature,
                         gpu->max_operating_temperature - gpu->slowdown_temperature, 0, 0};
  return put_int(field, offsets[field->fieldId - NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT]);
}

static int event_time(const struct target *target, struct field *field, unsigned position)
{
  static const enum throttle reasons[EVENT_TIMES] = {
      THROTTLE_sw_thermal, THROTTLE_hw_thermal, THROTTLE_hw_power_brake};
  return put_ull(field, throttled_ns(target, reasons[position]));
}

/* A setting that somebody keeps changing: read as a counter it runs backwards. */
static unsigned flickering(unsigned one, unsigned other)
{
  static atomic_uint reads;
  return atomic_fetch_add(&reads, 1) % 2 == 0 ? one : other;
}

static int smoothing_state(struct field *field, unsigned position)
{
  static const unsigned settings[EVENT_TIMES] = {1, 0, 75};
  return put_uint(field, position == FLICKERING ? flickering(0, 1) : settings[position]);
}

static int smoothing_override(struct field *field, unsigned position)
{
  static const unsigned settings[EVENT_TIMES] = {100, 0, 5};
  return put_uint(field, position == FLICKERING ? flickering(50, 10) : settings[position]);
}

/* Throttled time moved within branch 580; what 580.66 to 580.81 do is not published. */
static bool times_moved(const struct board_header *header)
{
  unsigned branch = 0, minor = 0;
  if (sscanf(header->driver_version, "%u.%u", &branch, &minor) != 2)
    branch = header->driver_branch;
  return branch > 580 || (branch == 580 && minor >= 82);
}

/* 251-253: throttled time only from 575 to 580.81. */
static int event_times_575_field(const struct target *target, struct field *field)
{
  unsigned branch = target->header->driver_branch;
  unsigned position = field->fieldId - FIELD_575_SW_THERMAL;
  if (branch < 570)
    return NVML_ERROR_NOT_SUPPORTED;
  if (branch >= 575 && !times_moved(target->header))
    return event_time(target, field, position);
  return smoothing_state(field, position);
}

/* 269-271: throttled time since 580.82. */
static int event_times_580_field(const struct target *target, struct field *field)
{
  unsigned position = field->fieldId - FIELD_580_SW_THERMAL;
  if (target->header->driver_branch < 575)
    return NVML_ERROR_NOT_SUPPORTED;
  if (times_moved(target->header))
    return event_time(target, field, position);
  return smoothing_override(field, position);
}

static const struct {
  unsigned first, last;
  int (*read)(const struct target *target, struct field *field);
} readers[] = {
    {NVML_FI_DEV_PERF_POLICY_POWER, NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS, policy_field},
    {NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_MEMORY_TEMP, memory_temperature_field},
    {NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_LINK_COUNT, nvlink_count_field},
    {NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
     nvlink_errors_field},
    {NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
     recovery_action_field},
    {NVML_FI_DEV_C2C_LINK_COUNT, NVML_FI_DEV_C2C_LINK_COUNT, c2c_links_field},
    {NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT, power_field},
    {NVML_FI_DEV_POWER_CURRENT_LIMIT, NVML_FI_DEV_POWER_CURRENT_LIMIT, power_limit_field},
    {NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT,
     temperature_limit_field},
    {FIELD_575_SW_THERMAL, FIELD_575_POWER_BRAKE, event_times_575_field},
    {FIELD_580_SW_THERMAL, FIELD_580_POWER_BRAKE, event_times_580_field},
};

static int read_field(const struct target *target, struct field *field)
{
  for (unsigned i = 0; i < sizeof readers / sizeof readers[0]; i++)
    if (field->fieldId >= readers[i].first && field->fieldId <= readers[i].last)
      return readers[i].read(target, field);
  return NVML_ERROR_NOT_SUPPORTED;
}

API int nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields)
{
  int result = checked(count > 0 && fields != NULL, NVML_ERROR_INVALID_ARGUMENT);
  if (result != NVML_SUCCESS)
    return result;
  struct target target;
  result = guard(device, CALL_DeviceGetFieldValues, &target);
  if (result != NVML_SUCCESS)
    return result;
  for (int i = 0; i < count; i++) {
    fields[i].timestamp = (long long)timestamp_us(target.header, now_ns());
    fields[i].latencyUsec = 0;
    fields[i].value.ull = 0;
    fields[i].nvmlReturn = read_field(&target, &fields[i]);
  }
  return NVML_SUCCESS;
}
