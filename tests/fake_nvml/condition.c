/* What the driver says of a GPU as a whole: its fabric, its NVLinks, repairs of its memory. */
#include "fake_nvml.h"

#include <string.h>

API int nvmlDeviceGetNvLinkState(struct device *device, unsigned link, unsigned *active)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetNvLinkState, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (link >= target.gpu->nvlinks)
    return NVML_ERROR_INVALID_ARGUMENT;
  *active = link < target.gpu->nvlinks_active;
  return NVML_SUCCESS;
}

#if DRIVER_BRANCH >= 550
struct fabric_info;

/* Of version 2 or 3. */
API int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric_info *versioned)
{
  struct fabric_info_v3 *info = (struct fabric_info_v3 *)(void *)versioned;
  struct target target;
  int result = guard(device, CALL_DeviceGetGpuFabricInfoV, &target);
  if (result != NVML_SUCCESS)
    return result;
  bool third = info->version == nvmlGpuFabricInfo_v3;
  if ((!third && info->version != nvmlGpuFabricInfo_v2) ||
      (third && target.header->driver_branch < 575))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  info->state = (unsigned char)target.gpu->fabric_state;
  info->status = (int)target.gpu->fabric_status;
  return NVML_SUCCESS;
}
#endif

#if DRIVER_BRANCH >= 580
API int nvmlDeviceGetRepairStatus(struct device *device, struct repair_status *status)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetRepairStatus, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (status->version != nvmlRepairStatus_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  status->bChannelRepairPending = target.gpu->repairs_pending & 1;
  status->bTpcRepairPending = target.gpu->repairs_pending >> 1;
  return NVML_SUCCESS;
}
#endif

#if DRIVER_BRANCH >= 590
API int nvmlDeviceGetUnrepairableMemoryFlag_v1(struct device *device,
                                               struct unrepairable_memory *status)
{
  struct target target;
  int result = guard(device, NO_CALL, &target);
  if (result == NVML_SUCCESS)
    status->bUnrepairableMemory = target.gpu->unrepairable_memory;
  return result;
}
#endif
