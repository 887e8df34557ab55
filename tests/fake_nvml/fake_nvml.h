/* What the files of this stand-in share: NVML's structures, the board, the guard. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "board.h"

#ifndef DRIVER_BRANCH
#define DRIVER_BRANCH 580
#endif

/* Only these symbols leave the library. */
#define API __attribute__((visibility("default")))

/* MAX_WINDOWS: the longest sample ring. */
enum { MAX_ENTITIES = 64, MAX_WINDOWS = 120, NO_CALL = -1 };

#define NOT_IN_MIG 0xFFFFFFFFu
#define SLOTS_PER_SECOND 100u
/* Of power at the moment. */
#define INSTANT_SLOTS 10u

/* NVML's opaque device handle: a GPU or a MIG instance of the board. */
struct device {
  unsigned index;
};

/* What a device call works on once the guard let it in. */
struct target {
  const struct board_header *header;
  const struct board_gpu *gpu;
  unsigned index;
};

/* One amount per lane, LANE_index unused. */
struct amounts {
  uint64_t lane[LANES];
};

/* A read under the writers' sequence; start with {0}. */
struct read {
  uint64_t sequence;
  int tries;
};

/* board.c */
const struct board_header *current_board(void);
int open_board(void);
int close_board(void);
const struct board_gpu *board_entity(const struct board_header *header, unsigned index);
struct device *device_at(unsigned index);
bool is_instance_of(const struct target *parent, unsigned index);
int checked(bool valid, int otherwise);
int guard(const struct device *device, int call, struct target *target);
uint64_t now_ns(void);
uint64_t timestamp_us(const struct board_header *header, uint64_t monotonic_ns);
void sleep_us(uint64_t microseconds);
int copy_text(const char *text, char *out, unsigned size);

/* work.c */
void read_begin(const struct board_gpu *gpu, struct read *read);
bool read_torn(const struct board_gpu *gpu, struct read *read);
void done_until(const struct target *target, uint64_t slot, struct amounts *done);
void window_sums(const struct target *target, enum lane lane, uint64_t first_slot,
                 unsigned window_slots, unsigned windows, uint64_t *sums);
uint64_t sum_of_last(const struct target *target, enum lane lane, unsigned slots);
bool averages_power(const struct target *target);
unsigned power_mw(const struct target *target, unsigned slots);
uint64_t energy_mj(const struct target *target);
uint64_t throttled_ns(const struct target *target, enum throttle reason);
int policy_ns(const struct target *target, unsigned policy, uint64_t *nanoseconds);

/* processes.c */
uint64_t processes_bytes(const struct target *target);

#endif
