//! Floor 2, sans-io: the SRP protocol: login, channels, credits, commands, task management.
//!
//! It knows information units and their rules. It must not know the RDMA engine, SCSI's
//! meaning of a CDB, or block devices.
