/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * srpoll's initiator for C programs, as src/lib.rs has it. A handle belongs to one thread at a time.
 */
#ifndef SRPOLL_H
#define SRPOLL_H

#include <stddef.h>
#include <stdint.h>

/* A line of text, without a line break. */
typedef void (*srpoll_log)(const char *line);

struct srpoll_options {
	const char *target;	/* ADDRESS[:PORT], or shm:SOCKET */
	const char *local;	/* ADDRESS, or FIRST..LAST: each job takes the next; NULL with shm: */
	uint32_t lun;
	uint32_t channels;
	uint32_t depth;		/* I/Os at a time, over all channels */
	uint32_t job;		/* number of the job, from 0 */
};

struct srpoll_info {
	uint64_t bytes;		/* size of the logical unit */
	uint32_t block_bytes;
	uint32_t max_io_bytes;	/* longest I/O */
	uint64_t max_trim_bytes;	/* longest UNMAP; 0 if there is none */
	uint32_t channels;	/* that the target gave */
};

enum srpoll_direction {
	SRPOLL_READ = 0,
	SRPOLL_WRITE = 1,
	SRPOLL_SYNC = 2,	/* SYNCHRONIZE CACHE of the whole logical unit; without data */
	SRPOLL_TRIM = 3,	/* UNMAP; without data */
};

struct srpoll_done {
	void *user;
	int error;		/* 0 or an error number */
};

struct srpoll;

/* Logs in. NULL after the log was told why not. */
struct srpoll *srpoll_open(const struct srpoll_options *, struct srpoll_info *, srpoll_log);

/* Registered memory for data, page aligned; it lives as long as the handle. NULL after the log was told. */
void *srpoll_memory(struct srpoll *, size_t len);

/* Takes an I/O, which the next poll sends: 0, EAGAIN if there is no room now, EINVAL for what is no whole blocks or too long,
 * EFAULT for data outside the memory, ENOTCONN if the session is lost. */
int srpoll_submit(struct srpoll *, int direction, uint64_t offset, void *data, uint64_t len, void *user);

/* Polls if something was submitted, unless more is to be expected: for each I/O that has ended, taken or not,
 * another one, so that they leave together. For 16 it polls in any case. Who waits for ends must take, and
 * poll when there is nothing to take. */
void srpoll_commit(struct srpoll *);

/* Moves everything: sends, and looks for what has come. */
void srpoll_poll(struct srpoll *);

/* Stores at most `most` I/Os that have ended and gives their number. */
uint32_t srpoll_take(struct srpoll *, struct srpoll_done *, uint32_t most);

/* Logs out. */
void srpoll_close(struct srpoll *);

#endif
