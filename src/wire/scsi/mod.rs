//! SCSI as bytes: CDBs, sense data, and the parameter data of the commands that srpoll serves and
//! sends.
//!
//! It knows layouts (SPC-4, SBC-3, SAM-5; the clause stands with each type). It must not know
//! which of them a device server accepts, nor any state: that is `crate::scsi`.
//!
//! * [`lun`]: the 8-byte LUN field
//! * [`status`]: SAM status codes
//! * [`cdb`]: command descriptor blocks
//! * [`sense`]: sense data, fixed and descriptor format
//! * [`inquiry`], [`vpd`]: INQUIRY data
//! * [`mode`]: mode parameter headers, block descriptors and pages
//! * [`capacity`]: READ CAPACITY parameter data
//! * [`luns`]: REPORT LUNS parameter data
//! * [`unmap`]: UNMAP parameter lists

pub mod capacity;
pub mod cdb;
pub mod inquiry;
pub mod lun;
pub mod luns;
pub mod mode;
mod params;
pub mod sense;
pub mod status;
pub mod unmap;
pub mod vpd;
