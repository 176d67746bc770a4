//! Floor 2, sans-io: the SCSI device server: logical units, CDBs in, sense data and block
//! operations (as values) out.
//!
//! It must not know SRP or block devices.
