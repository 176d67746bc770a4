/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The fio I/O engine of srpoll: joins fio's interface to the one in srpoll.h. It includes fio's headers,
 * which are GPL-2, and so is this file (see LICENSE.md); the rest of srpoll is not.
 *
 * A job is one session on one logical unit. fio's buffers are registered memory of the session, so that
 * data are not copied here. Completions are polled for by fio's own thread.
 *
 * A look at the network costs more than an I/O. By default fio commits each I/O and asks for one event at a
 * time; so all events that came with one look are handed out before there is another, and what fio queued
 * meanwhile leaves with that: commit does nothing as long as fio can be expected to queue more, which is one
 * I/O for each event. fio waits for nothing but events, so this holds nothing up.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "fio.h"
#include "optgroup.h"

#include "srpoll.h"

struct options {
	void *pad; /* fio wants the first option behind something */
	char *target;
	char *local;
	unsigned int lun;
	unsigned int channels;
};

/* A running job. */
struct job {
	struct srpoll *session;
	struct srpoll_info info;
	struct srpoll_done *done;
	unsigned int queued; /* since the last commit */
};

static struct fio_option option_list[] = {
	{
		.name = "target",
		.lname = "SRP target",
		.help = "Address and service port of the target: ADDRESS[:PORT], or shm:SOCKET",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct options, target),
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "local",
		.lname = "Own address",
		.help = "Address to send from, or FIRST..LAST: each job takes the next; not with shm:",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct options, local),
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "lun",
		.lname = "Logical unit",
		.help = "Number of the logical unit",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct options, lun),
		.def = "0",
		.maxval = 16383,
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "channels",
		.lname = "Channels",
		.help = "Channels of the session",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct options, channels),
		.def = "1",
		.minval = 1,
		.maxval = 256,
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = NULL,
	},
};

extern struct ioengine_ops ioengine;

static void say(const char *line)
{
	log_err("srpoll: %s\n", line);
}

static struct srpoll *log_in(struct thread_data *td, struct srpoll_info *info)
{
	const struct options *wanted = td->eo;
	const struct srpoll_options options = {
		.target = wanted->target,
		.local = wanted->local,
		.lun = wanted->lun,
		.channels = wanted->channels,
		.depth = td->o.iodepth,
		.job = td->thread_number - 1,
	};

	return srpoll_open(&options, info, say);
}

/* What the job asks for, and the logical unit cannot do. */
static int check(const struct thread_data *td, const struct srpoll_info *info)
{
	if ((td_trim(td) || td->o.trim_percentage) && !info->max_trim_bytes) {
		log_err("srpoll: %s: trim: the logical unit has no UNMAP\n", td->o.name);
		return 1;
	}
	for_each_rw_ddir(ddir) {
		const unsigned long long min = td->o.min_bs[ddir], max = td->o.max_bs[ddir];
		const unsigned long long most = ddir == DDIR_TRIM ? info->max_trim_bytes : info->max_io_bytes;

		if (ddir == DDIR_TRIM && !td_trim(td))
			continue;
		if (min % info->block_bytes) {
			log_err("srpoll: %s: bs=%llu is no multiple of the logical unit's block of %u bytes\n",
				td->o.name, min, info->block_bytes);
			return 1;
		}
		if (max > most) {
			log_err("srpoll: %s: bs=%llu is longer than the logical unit takes, %llu bytes\n",
				td->o.name, max, most);
			return 1;
		}
	}
	if (td->o.size != -1ULL && td->o.size > info->bytes) {
		log_err("srpoll: %s: size=%llu is more than the logical unit has, %llu bytes\n", td->o.name,
			(unsigned long long) td->o.size, (unsigned long long) info->bytes);
		return 1;
	}
	return 0;
}

/* Before the job has its process or thread: finds out how large the logical unit is. */
static int engine_setup(struct thread_data *td)
{
	struct job *job;
	struct srpoll_info info;
	struct srpoll *session;
	struct fio_file *file;
	unsigned int i;

	/* Behind all of fio's options: a fio of another build has it elsewhere. */
	if (td->io_ops != &ioengine) {
		log_err("srpoll: the engine was built against another fio than this one\n");
		return 1;
	}
	job = td->io_ops_data;
	if (job) {
		info = job->info;
	} else {
		session = log_in(td, &info);
		if (!session)
			return 1;
		srpoll_close(session);
	}
	if (check(td, &info))
		return 1;
	if (!td->files_index) {
		add_file(td, td->o.filename ? td->o.filename : "srpoll", 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	for_each_file(td, file, i) {
		file->filetype = FIO_TYPE_BLOCK;
		file->real_file_size = info.bytes;
		fio_file_set_size_known(file);
	}
	return 0;
}

static int engine_init(struct thread_data *td)
{
	const struct options *wanted = td->eo;
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return 1;
	job->done = calloc(td->o.iodepth, sizeof(*job->done));
	job->session = job->done ? log_in(td, &job->info) : NULL;
	if (!job->session) {
		free(job->done);
		free(job);
		return 1;
	}
	if (job->info.channels < wanted->channels && job->info.channels < td->o.iodepth)
		log_info("srpoll: %s: the target gave %u channels of %u\n", td->o.name, job->info.channels,
			 wanted->channels);
	td->io_ops_data = job;
	return 0;
}

static void engine_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	srpoll_close(job->session);
	free(job->done);
	free(job);
	td->io_ops_data = NULL;
}

static int engine_iomem_alloc(struct thread_data *td, size_t len)
{
	struct job *job = td->io_ops_data;

	td->orig_buffer = srpoll_memory(job->session, len);
	return !td->orig_buffer;
}

/* The session frees it. */
static void engine_iomem_free(struct thread_data *td)
{
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	int direction, error;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		direction = SRPOLL_READ;
		break;
	case DDIR_WRITE:
		direction = SRPOLL_WRITE;
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
	case DDIR_SYNC_FILE_RANGE: /* all of it is more than a range */
		direction = SRPOLL_SYNC;
		break;
	case DDIR_TRIM:
		direction = SRPOLL_TRIM;
		break;
	default:
		io_u->error = EOPNOTSUPP;
		return FIO_Q_COMPLETED;
	}
	error = srpoll_submit(job->session, direction, io_u->offset, io_u->xfer_buf, io_u->xfer_buflen, io_u);
	if (!error) {
		/* Latency counts from here: sending, and waiting for others to be sent along, are part of it. */
		if (fio_fill_issue_time(td)) {
			fio_gettime(&io_u->issue_time, NULL);
			io_u_queued(td, io_u);
			if (td->o.read_iolog_file)
				td->last_issue = io_u->issue_time;
		}
		job->queued++;
		return FIO_Q_QUEUED;
	}
	if (error == EAGAIN) {
		/* What has ended is kept for getevents. */
		srpoll_poll(job->session);
		return FIO_Q_BUSY;
	}
	io_u->error = error;
	return FIO_Q_COMPLETED;
}

static int engine_commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	srpoll_commit(job->session);
	if (job->queued)
		io_u_mark_submit(td, job->queued);
	job->queued = 0;
	return 0;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			    const struct timespec *timeout)
{
	struct job *job = td->io_ops_data;
	unsigned int count = srpoll_take(job->session, job->done, max);
	struct timespec begun;

	if (count && count >= min)
		return count;
	if (timeout)
		fio_gettime(&begun, NULL);
	do {
		srpoll_poll(job->session);
		count += srpoll_take(job->session, job->done + count, max - count);
		if (timeout && count < min &&
		    ntime_since_now(&begun) > timeout->tv_sec * 1000000000ULL + timeout->tv_nsec)
			break;
	} while (count < min);
	return count;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	const struct job *job = td->io_ops_data;
	struct io_u *io_u = job->done[event].user;

	io_u->error = job->done[event].error;
	return io_u;
}

static int engine_open_file(struct thread_data *td, struct fio_file *file)
{
	return 0;
}

static int engine_close_file(struct thread_data *td, struct fio_file *file)
{
	return 0;
}

/* There is no cache on this side. */
static int engine_invalidate(struct thread_data *td, struct fio_file *file)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "srpoll",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_RAWIO | FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_MEMALIGN | FIO_NO_OFFLOAD |
		 FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = engine_setup,
	.init = engine_init,
	.cleanup = engine_cleanup,
	.queue = engine_queue,
	.commit = engine_commit,
	.getevents = engine_getevents,
	.event = engine_event,
	.open_file = engine_open_file,
	.close_file = engine_close_file,
	.invalidate = engine_invalidate,
	.iomem_alloc = engine_iomem_alloc,
	.iomem_free = engine_iomem_free,
	.option_struct_size = sizeof(struct options),
	.options = option_list,
};
