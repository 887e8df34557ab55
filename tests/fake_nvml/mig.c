/* Multi-instance GPU: from a GPU to its instances. */
#include "fake_nvml.h"

#if DRIVER_BRANCH >= 450

enum { MAX_INSTANCES = 7 };

API int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetMigMode, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (target.gpu->architecture < NVML_DEVICE_ARCH_AMPERE)
    return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = target.gpu->mig_enabled;
  return NVML_SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result == NVML_SUCCESS)
    *count = MAX_INSTANCES;
  return result;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned wanted,
                                            struct device **instance)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result != NVML_SUCCESS)
    return result;
  for (unsigned index = 0; index < target.header->gpu_count; index++) {
    if (!is_instance_of(&target, index) || wanted-- > 0)
      continue;
    *instance = device_at(index);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

API int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result == NVML_SUCCESS && target.gpu->kind != KIND_MIG)
    result = NVML_ERROR_NOT_SUPPORTED;
  if (result == NVML_SUCCESS)
    *id = target.gpu->gpu_instance;
  return result;
}

#endif
