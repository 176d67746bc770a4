//! The C interface of `srpoll.h`: pointers become values here, and nothing else happens. What it is for
//! is in `driver`; what fio wants of it is in `engine.c`.
//!
//! A handle belongs to one thread at a time. No function unwinds: a panic ends the process with its
//! message.

#![allow(unsafe_code)]

mod driver;
mod options;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use anyhow::Context;
use driver::{Direction, Driver};
use options::{Options, Way};
use srpoll::cli::endpoint::ShmEndpoint;
use srpoll::rdma::verbs::{Connections, Device};
use srpoll::rdma::{shm, soft};

/// `srpoll_log`: a line of text without a line break.
type Log = extern "C" fn(*const c_char);

/// `struct srpoll_options`.
#[repr(C)]
pub struct RawOptions {
    target: *const c_char,
    local: *const c_char,
    lun: u32,
    channels: u32,
    depth: u32,
    job: u32,
}

/// `struct srpoll_info`.
#[repr(C)]
pub struct RawInfo {
    bytes: u64,
    block_bytes: u32,
    max_io_bytes: u32,
    max_trim_bytes: u64,
    channels: u32,
}

/// `struct srpoll_done`.
#[repr(C)]
pub struct RawDone {
    user: *mut c_void,
    error: c_int,
}

/// What `struct srpoll` is.
pub struct Handle {
    driver: Any,
    log: Log,
}

/// A driver over one of the devices that there are.
enum Any {
    Udp(Driver<soft::Device>),
    /// With what keeps our port id from other jobs as long as the session lives.
    Shm {
        driver: Driver<shm::Device>,
        _keeper: ShmEndpoint,
    },
}

impl Any {
    fn open(options: &Options) -> anyhow::Result<Any> {
        Ok(match &options.way {
            Way::Udp(end) => {
                let local = end.local.ip();
                let device = end.device().with_context(|| {
                    format!("local={local} (every job that runs needs an address of its own)")
                })?;
                Any::Udp(Driver::open(options, device, end.session()?, &end.target)?)
            }
            Way::Shm(end) => {
                let driver = Driver::open(options, end.device()?, end.session(), &end.socket.display())?;
                Any::Shm { driver, _keeper: end.clone() }
            }
        })
    }
}

/// The same with each of them.
macro_rules! with {
    ($any:expr, $driver:ident => $what:expr) => {
        match $any {
            Any::Udp($driver) => $what,
            Any::Shm { driver: $driver, .. } => $what,
        }
    };
}

/// What C is told of a logical unit.
fn known<D: Device + Connections>(driver: &Driver<D>) -> RawInfo {
    let found = driver.info();
    RawInfo {
        bytes: found.len_bytes(),
        block_bytes: found.block_bytes,
        max_io_bytes: driver.max_io_bytes(),
        max_trim_bytes: driver.max_trim_bytes(),
        channels: driver.channels(),
    }
}

fn say(log: Log, text: &str) {
    let line: String = text.chars().filter(|&c| c != '\0').collect();
    if let Ok(line) = CString::new(line) {
        log(line.as_ptr());
    }
}

/// # Safety
/// `text` is null or a C string that lives during the call.
unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: as the caller promises.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Logs in and finds out what the logical unit is; null after `log` was told why not.
///
/// # Safety
/// `options` and its strings can be read, `info` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn srpoll_open(
    options: *const RawOptions,
    info: *mut RawInfo,
    log: Log,
) -> *mut Handle {
    // SAFETY: as the caller promises.
    let raw = unsafe { &*options };
    // SAFETY: as above.
    let (target, local) = unsafe { (string(raw.target), string(raw.local)) };
    let opened = Options::new(target.as_deref(), local.as_deref(), raw.lun, raw.channels, raw.depth, raw.job)
        .and_then(|options| Any::open(&options));
    match opened {
        Ok(driver) => {
            let known = with!(&driver, driver => known(driver));
            // SAFETY: as the caller promises.
            unsafe { info.write(known) };
            Box::into_raw(Box::new(Handle { driver, log }))
        }
        Err(why) => {
            say(log, &format!("{why:#}"));
            ptr::null_mut()
        }
    }
}

/// Registers `len` bytes for data; null after the log was told why not. They live until the handle is
/// closed or asks for other memory.
///
/// # Safety
/// `handle` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn srpoll_memory(handle: *mut Handle, len: usize) -> *mut c_void {
    // SAFETY: as the caller promises.
    let handle = unsafe { &mut *handle };
    match with!(&mut handle.driver, driver => driver.memory(len)) {
        Ok(addr) => addr as *mut c_void,
        Err(why) => {
            say(handle.log, &format!("{why:#}"));
            ptr::null_mut()
        }
    }
}

/// Takes an I/O, which the next poll sends. Zero, or an error number: EAGAIN if there is no room now.
///
/// # Safety
/// `handle` is open, and nobody touches the data until the I/O has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn srpoll_submit(
    handle: *mut Handle,
    direction: c_int,
    offset: u64,
    data: *mut c_void,
    len: u64,
    user: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let handle = unsafe { &mut *handle };
    let Some(direction) = Direction::of(direction) else { return libc::EINVAL };
    match with!(&mut handle.driver, driver => driver.submit(direction, offset, data as u64, len, user as u64))
    {
        Ok(()) => 0,
        Err(error) => error,
    }
}

/// Sends what was submitted, unless more is about to come that can leave with it.
///
/// # Safety
/// `handle` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn srpoll_commit(handle: *mut Handle) {
    // SAFETY: as the caller promises.
    with!(unsafe { &mut (*handle).driver }, driver => driver.commit());
}

/// Moves everything.
///
/// # Safety
/// `handle` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn srpoll_poll(handle: *mut Handle) {
    // SAFETY: as the caller promises.
    with!(unsafe { &mut (*handle).driver }, driver => driver.poll());
}

/// Gives how many I/Os have ended, at most `most`.
///
/// # Safety
/// `handle` is open, and `done` has room for `most`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn srpoll_take(handle: *mut Handle, done: *mut RawDone, most: u32) -> u32 {
    // SAFETY: as the caller promises.
    let handle = unsafe { &mut *handle };
    let mut count = 0;
    while count < most {
        let Some(end) = with!(&mut handle.driver, driver => driver.next_done()) else { break };
        // SAFETY: `count` is below `most`.
        unsafe {
            done.add(count as usize).write(RawDone { user: end.user as *mut c_void, error: end.error })
        };
        count += 1;
    }
    while let Some(text) = with!(&mut handle.driver, driver => driver.next_word()) {
        say(handle.log, &text);
    }
    count
}

/// Logs out and frees everything; null is closed already.
///
/// # Safety
/// `handle` is open or null, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn srpoll_close(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: `srpoll_open` made it from a box, and this is its last use.
        let handle = unsafe { Box::from_raw(handle) };
        with!(handle.driver, driver => driver.close());
    }
}
