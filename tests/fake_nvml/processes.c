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

#if DRIVER_BRANCH >= 450

/* The entries that fit are written; `count` goes on. */
struct process_list {
  struct process_info *infos;
  unsigned room, count;
};

static void add_process(struct process_list *list, const struct board_gpu *gpu,
                        const struct board_process *process)
{
  bool mig = gpu->kind == KIND_MIG;
  if (list->count < list->room)
    list->infos[list->count] = (struct process_info){
        .pid = process->pid,
        .usedGpuMemory = process->used_bytes,
        .gpuInstanceId = mig ? gpu->gpu_instance : NOT_IN_MIG,
        .computeInstanceId = mig ? gpu->compute_instance : NOT_IN_MIG,
    };
  list->count++;
}

static void add_entity(struct process_list *list, const struct board_gpu *gpu, unsigned kind)
{
  struct board_process table[MAX_PROCESSES];
  copy_table(gpu, table);
  for (unsigned i = 0; i < MAX_PROCESSES; i++)
    if (table[i].kind == kind && is_alive(&table[i]))
      add_process(list, gpu, &table[i]);
}

static int list_processes(const struct device *device, int call, unsigned kind, unsigned *count,
                          struct process_info *infos)
{
  struct target target;
  int result = guard(device, call, &target);
  if (result != NVML_SUCCESS)
    return result;
  struct process_list list = {infos, infos == NULL ? 0 : *count, 0};
  add_entity(&list, target.gpu, kind);
  for (unsigned index = 0; index < target.header->gpu_count; index++)
    if (is_instance_of(&target, index))
      add_entity(&list, board_entity(target.header, index), kind);
  *count = list.count;
  return list.count > list.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                struct process_info *infos)
{
  return list_processes(device, CALL_DeviceGetComputeRunningProcesses, PROCESS_COMPUTE, count,
                        infos);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(struct device *device, unsigned *count,
                                                 struct process_info *infos)
{
  return list_processes(device, CALL_DeviceGetGraphicsRunningProcesses, PROCESS_GRAPHICS, count,
                        infos);
}
#endif

#if DRIVER_BRANCH >= 470
API int nvmlDeviceGetMPSComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                   struct process_info *infos)
{
  struct target target;
  int result = guard(device, CALL_DeviceGetMPSComputeRunningProcesses, &target);
  (void)infos;
  if (result == NVML_SUCCESS)
    *count = 0;
  return result;
}
#endif
