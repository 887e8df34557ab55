/* The processes that hold a context. */
#include "fake_nvml.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/types.h>

static bool is_alive(const struct board_process *process)
{
  return process->pid != 0 && (kill((pid_t)process->pid, 0) == 0 || errno != ESRCH);
}

static void copy_table(const struct board_gpu *gpu, struct board_process table[MAX_PROCESSES])
{
  struct read read = {0};
  do {
    read_begin(gpu, &read);
    memcpy(table, gpu->processes, sizeof gpu->processes);
  } while (read_torn(gpu, &read));
}

static uint64_t entity_bytes(const struct board_gpu *gpu)
{
  struct board_process table[MAX_PROCESSES];
  copy_table(gpu, table);
  uint64_t bytes = 0;
  for (unsigned i = 0; i < MAX_PROCESSES; i++)
    bytes += is_alive(&table[i]) ? table[i].used_bytes : 0;
  return bytes;
}

uint64_t processes_bytes(const struct target *target)
{
  uint64_t bytes = entity_bytes(target->gpu);
  for (unsigned index = 0; index < target->header->gpu_count; index++)
    if (is_instance_of(target, index))
      bytes += entity_bytes(board_entity(target->header, index));
  return bytes;
}

/* Entries of version 1 or of the later ones; those that fit are written, `count` goes on. */
struct process_list {
  unsigned version;
  void *entries;
  unsigned room, count;
};

static void add_process(struct process_list *list, const struct board_gpu *gpu,
                        const struct board_process *process)
{
  bool mig = gpu->kind == KIND_MIG;
  unsigned at = list->count++;
  if (at >= list->room)
    return;
  if (list->version == 1)
    ((struct process_info_v1 *)list->entries)[at] =
        (struct process_info_v1){process->pid, process->used_bytes};
  else
    ((struct process_info *)list->entries)[at] = (struct process_info){
        .pid = process->pid,
        .usedGpuMemory = process->used_bytes,
        .gpuInstanceId = mig ? gpu->gpu_instance : NOT_IN_MIG,
        .computeInstanceId = mig ? gpu->compute_instance : NOT_IN_MIG,
    };
}

static void add_entity(struct process_list *list, const struct board_gpu *gpu, unsigned kind)
{
  struct board_process table[MAX_PROCESSES];
  copy_table(gpu, table);
  for (unsigned i = 0; i < MAX_PROCESSES; i++)
    if (table[i].kind == kind && is_alive(&table[i]))
      add_process(list, gpu, &table[i]);
}

static bool answers(const struct target *target, unsigned version)
{
  unsigned only = target->gpu->process_list_version;
  return only == 0 || only == version;
}

/* `kind` of no process: an empty list. */
static int list_processes(const struct device *device, int call, unsigned kind, unsigned version,
                          unsigned *count, void *entries)
{
  struct target target;
  int result = guard(device, call, &target);
  if (result != NVML_SUCCESS)
    return result;
  if (!answers(&target, version))
    return NVML_ERROR_NOT_SUPPORTED;
  struct process_list list = {version, entries, entries == NULL ? 0 : *count, 0};
  add_entity(&list, target.gpu, kind);
  for (unsigned index = 0; index < target.header->gpu_count; index++)
    if (is_instance_of(&target, index))
      add_entity(&list, board_entity(target.header, index), kind);
  *count = list.count;
  return list.count > list.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define NO_PROCESS 0xFFFFFFFFu
#define COMPUTE CALL_DeviceGetComputeRunningProcesses, PROCESS_COMPUTE
#define DRAWS CALL_DeviceGetGraphicsRunningProcesses, PROCESS_GRAPHICS
#define SHARES CALL_DeviceGetMPSComputeRunningProcesses, NO_PROCESS

API int nvmlDeviceGetComputeRunningProcesses(struct device *device, unsigned *count,
                                             struct process_info_v1 *infos)
{
  return list_processes(device, COMPUTE, 1, count, infos);
}

API int nvmlDeviceGetGraphicsRunningProcesses(struct device *device, unsigned *count,
                                              struct process_info_v1 *infos)
{
  return list_processes(device, DRAWS, 1, count, infos);
}

#if DRIVER_BRANCH >= 450
API int nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                struct process_info_v2 *infos)
{
  return list_processes(device, COMPUTE, 2, count, infos);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(struct device *device, unsigned *count,
                                                 struct process_info_v2 *infos)
{
  return list_processes(device, DRAWS, 2, count, infos);
}
#endif

#if DRIVER_BRANCH >= 470
API int nvmlDeviceGetMPSComputeRunningProcesses(struct device *device, unsigned *count,
                                                struct process_info_v1 *infos)
{
  return list_processes(device, SHARES, 1, count, infos);
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                   struct process_info_v2 *infos)
{
  return list_processes(device, SHARES, 2, count, infos);
}
#endif

#if DRIVER_BRANCH >= 510
API int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                struct process_info *infos)
{
  return list_processes(device, COMPUTE, 3, count, infos);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count,
                                                 struct process_info *infos)
{
  return list_processes(device, DRAWS, 3, count, infos);
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                   struct process_info *infos)
{
  return list_processes(device, SHARES, 3, count, infos);
}
#endif
