// Reads, receives and waits by raw system calls: through an io_uring ring or kernel AIO.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum wait { IN_CALL, ON_EVENTFD, IN_EPOLL };

static int ring = -1, event = -1, epoll = -1;
static unsigned flags;
static unsigned *sq_tail, *sq_mask, *sq_array, *sq_flags, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;
static aio_context_t aio;
static struct __kernel_timespec pause_of;

static void await(enum wait how)
{
	uint64_t count;
	struct epoll_event ready;
	struct pollfd one = {event, POLLIN, 0};

	if (how == ON_EVENTFD)
		poll(&one, 1, -1);
	if (how == IN_EPOLL)
		epoll_wait(epoll, &ready, 1, -1);
	if (event >= 0)
		(void)!read(event, &count, sizeof(count));
}

// Opens the ring, or returns -errno where the kernel refuses it.
int ring_open(int with_poller, enum wait how)
{
	struct io_uring_params p = {.flags = with_poller ? IORING_SETUP_SQPOLL : 0};
	struct epoll_event wanted = {.events = EPOLLIN};
	char *sq, *cq;

	ring = syscall(SYS_io_uring_setup, 8, &p);
	if (ring < 0)
		return -errno;
	flags = p.flags;
	sq = mmap(0, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE,
		  MAP_SHARED, ring, IORING_OFF_SQ_RING);
	cq = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(*cqes), PROT_READ | PROT_WRITE,
		  MAP_SHARED, ring, IORING_OFF_CQ_RING);
	sqes = mmap(0, p.sq_entries * sizeof(*sqes), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		    IORING_OFF_SQES);
	sq_tail = (unsigned *)(sq + p.sq_off.tail);
	sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	sq_array = (unsigned *)(sq + p.sq_off.array);
	sq_flags = (unsigned *)(sq + p.sq_off.flags);
	cq_head = (unsigned *)(cq + p.cq_off.head);
	cq_tail = (unsigned *)(cq + p.cq_off.tail);
	cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
	cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
	if (how == ON_EVENTFD) {
		event = eventfd(0, EFD_NONBLOCK);
		syscall(SYS_io_uring_register, ring, IORING_REGISTER_EVENTFD, &event, 1);
	}
	if (how == IN_EPOLL) {
		epoll = epoll_create1(0);
		epoll_ctl(epoll, EPOLL_CTL_ADD, ring, &wanted);
	}
	return 0;
}

// Does one request and waits until it is done; returns its result.
static int done(const struct io_uring_sqe *request, enum wait how)
{
	unsigned at = *sq_tail & *sq_mask, head = *cq_head, enter = how == IN_CALL;
	unsigned submit = !(flags & IORING_SETUP_SQPOLL);
	int result;

	sqes[at] = *request;
	sq_array[at] = at;
	__atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_SEQ_CST);
	enter = how == IN_CALL ? IORING_ENTER_GETEVENTS : 0;
	if (!submit && __atomic_load_n(sq_flags, __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP)
		enter |= IORING_ENTER_SQ_WAKEUP;
	if (submit || enter)
		syscall(SYS_io_uring_enter, ring, submit, how == IN_CALL, enter, 0, 0);
	while (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE)) {
		if (how == IN_CALL)
			syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
		else
			await(how);
	}
	result = cqes[head & *cq_mask].res;
	__atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
	return result;
}

int ring_read(int file, void *room, unsigned size, uint64_t offset, enum wait how)
{
	struct io_uring_sqe request = {.opcode = IORING_OP_READ, .fd = file, .off = offset};

	request.addr = (uintptr_t)room;
	request.len = size;
	return done(&request, how);
}

int ring_receive(int connection, void *room, unsigned size, enum wait how)
{
	struct io_uring_sqe request = {.opcode = IORING_OP_RECV, .fd = connection};

	request.addr = (uintptr_t)room;
	request.len = size;
	return done(&request, how);
}

int ring_pause(unsigned milliseconds, enum wait how)
{
	struct io_uring_sqe request = {.opcode = IORING_OP_TIMEOUT, .len = 1};

	pause_of.tv_sec = 0;
	pause_of.tv_nsec = milliseconds * 1000000;
	request.addr = (uintptr_t)&pause_of;
	return done(&request, how);
}

int aio_open(enum wait how)
{
	if (how == ON_EVENTFD)
		event = eventfd(0, EFD_NONBLOCK);
	return syscall(SYS_io_setup, 8, &aio) ? -errno : 0;
}

int aio_read(int file, void *room, unsigned size, uint64_t offset, enum wait how)
{
	struct iocb request = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file};
	struct iocb *requests[] = {&request};
	struct io_event result;

	request.aio_buf = (uintptr_t)room;
	request.aio_nbytes = size;
	request.aio_offset = offset;
	if (how == ON_EVENTFD) {
		request.aio_flags = IOCB_FLAG_RESFD;
		request.aio_resfd = event;
	}
	if (syscall(SYS_io_submit, aio, 1, requests) != 1)
		return -errno;
	while (syscall(SYS_io_getevents, aio, how == IN_CALL, 1, &result, 0) != 1)
		await(how);
	return result.res;
}

// Waits in io_getevents, with nothing in flight.
int aio_pause(unsigned milliseconds)
{
	struct timespec until = {0, milliseconds * 1000000};
	struct io_event result;

	return syscall(SYS_io_getevents, aio, 1, 1, &result, &until);
}
