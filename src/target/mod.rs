//! Floor 4: the SRP target: joins verbs, SRP, SCSI and block devices, and owns them, one shard a core.
