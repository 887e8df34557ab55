/* The library and the driver as a whole. */
#include "fake_nvml.h"

#include <stdio.h>

API int nvmlInitWithFlags(unsigned flags)
{
  (void)flags;
  return open_board();
}

API int nvmlInit_v2(void)
{
  return open_board();
}

API int nvmlShutdown(void)
{
  return close_board();
}

API int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
  const struct board_header *header = current_board();
  if (header == NULL)
    return NVML_ERROR_UNINITIALIZED;
  return copy_text(header->driver_version, version, length);
}

API int nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
  const struct board_header *header = current_board();
  if (header == NULL)
    return NVML_ERROR_UNINITIALIZED;
  char text[sizeof header->driver_version + 16];
  snprintf(text, sizeof text, "%u.%s", header->cuda_version / 1000, header->driver_version);
  return copy_text(text, version, length);
}

API int nvmlSystemGetCudaDriverVersion(int *version)
{
  const struct board_header *header = current_board();
  if (header == NULL)
    return NVML_ERROR_UNINITIALIZED;
  *version = (int)header->cuda_version;
  return NVML_SUCCESS;
}

#if DRIVER_BRANCH >= 410
API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
  return nvmlSystemGetCudaDriverVersion(version);
}
#endif

API const char *nvmlErrorString(unsigned result)
{
  static const char *const texts[] = {
      "Success", "Uninitialized", "Invalid Argument", "Not Supported",
      "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
      "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
      "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM",
      "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system",
      "Driver/library version mismatch", "In use by another client", "Insufficient Memory",
  };
  if (result == NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    return "Argument version mismatch";
  if (result >= sizeof texts / sizeof texts[0])
    return "Unknown Error";
  return texts[result];
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
  const struct board_header *header = current_board();
  if (header == NULL)
    return NVML_ERROR_UNINITIALIZED;
  *count = 0;
  for (unsigned index = 0; index < header->gpu_count; index++)
    *count += board_entity(header, index)->kind == KIND_GPU;
  return NVML_SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned wanted, struct device **device)
{
  const struct board_header *header = current_board();
  if (header == NULL)
    return NVML_ERROR_UNINITIALIZED;
  for (unsigned index = 0; index < header->gpu_count; index++) {
    if (board_entity(header, index)->kind != KIND_GPU || wanted-- > 0)
      continue;
    struct target target;
    *device = device_at(index);
    return guard(*device, CALL_DeviceGetHandleByIndex, &target);
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}
