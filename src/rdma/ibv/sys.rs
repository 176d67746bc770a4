//! Verbs objects that own themselves: each ends by `Drop`, and holds what it stands on.
//!
//! This is the only place that calls libibverbs. libibverbs may be called from several threads at a
//! time; the objects are `Send` and `Sync` by that.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rdma_core_sys as sys;
use reactors::memory::{Pinned, Region};

use super::convert;
use crate::rdma::verbs::{Access, MAX_SGE, MrKeys, QpState, RecvWr, SendOp, SendWr, Sge};
use crate::wire::num::{LKey, Qpn, RKey};

/// What an owner of a raw pointer shares: the library locks for itself.
macro_rules! shared_by_threads {
    ($($name:ident),*) => {$(
        // SAFETY: libibverbs allows every call from every thread (ibv_get_device_list(3) and the
        // InfiniBand verbs' own rules); the pointer is freed once, by `Drop`.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}
shared_by_threads!(Context, Pd, Mr, Channel, Cq, Srq, Qp);

/// Names of all devices, in the library's order.
pub(super) fn device_names() -> io::Result<Vec<String>> {
    with_devices(|devices| devices.iter().map(|device| name_of(*device)).collect())
}

fn with_devices<T>(look: impl FnOnce(&[*mut sys::ibv_device]) -> T) -> io::Result<T> {
    let mut count: c_int = 0;
    // SAFETY: the library writes the count; the list is freed below.
    let list = unsafe { sys::ibv_get_device_list(&mut count) };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a list of `count` pointers, valid until freed.
    let devices = unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
    let seen = look(devices);
    // SAFETY: made above; a device that was opened keeps what it needs.
    unsafe { sys::ibv_free_device_list(list) };
    Ok(seen)
}

fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: a device of a list that is not freed yet, or of an open context.
    let name = unsafe { sys::ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: a string that lives as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// The name of a device of librdmacm's context.
///
/// # Safety
/// `context` is an open context.
pub(super) unsafe fn name_of_context(context: *mut sys::ibv_context) -> String {
    // SAFETY: the caller's context is open, so its device is there.
    name_of(unsafe { (*context).device })
}

/// An open device.
pub(super) struct Context {
    raw: NonNull<sys::ibv_context>,
}

impl Context {
    /// Opens the device called `name`; `None` if there is none.
    pub(super) fn open(name: &str) -> io::Result<Option<Arc<Context>>> {
        with_devices(|devices| {
            let Some(device) = devices.iter().find(|device| name_of(**device) == name) else {
                return Ok(None);
            };
            // SAFETY: a device of the list.
            let raw = unsafe { sys::ibv_open_device(*device) };
            NonNull::new(raw).map(|raw| Some(Arc::new(Context { raw }))).ok_or_else(io::Error::last_os_error)
        })?
    }

    /// What the device can do.
    pub(super) fn device(&self) -> io::Result<sys::ibv_device_attr> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: sys::ibv_device_attr = unsafe { zeroed() };
        // SAFETY: an open context and room for its answer.
        status(unsafe { sys::ibv_query_device(self.raw.as_ptr(), &mut attr) })?;
        Ok(attr)
    }

    /// How a port (from 1) is.
    pub(super) fn port(&self, number: u8) -> io::Result<sys::ibv_port_attr> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: sys::ibv_port_attr = unsafe { zeroed() };
        // SAFETY: an open context and room for its answer.
        status(unsafe { sys::ibv_query_port(self.raw.as_ptr(), number, &mut attr) })?;
        Ok(attr)
    }

    /// Where asynchronous events come from, made non-blocking.
    pub(super) fn watch_events(&self) -> io::Result<()> {
        rustix::io::ioctl_fionbio(self.event_fd(), true)?;
        Ok(())
    }

    /// The descriptor of asynchronous events.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context has its descriptor open.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// The next asynchronous event, if there is one: its number, and what its owner gave as context
    /// when it was made (or the number of the port).
    pub(super) fn next_event(&self) -> io::Result<Option<(u32, u64)>> {
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: an open context and room for an event.
        if unsafe { sys::ibv_get_async_event(self.raw.as_ptr(), event.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: written by the library. Read as a number: the enum is undefined for values that a
        // later library may send.
        let number = unsafe { (&raw const (*event.as_ptr()).event_type).cast::<u32>().read() };
        // SAFETY: zeroed above and then written: one word, whatever it is.
        let element = unsafe { &raw const (*event.as_ptr()).element };
        use convert::EventKind as K;
        // SAFETY: by its kind the element points to an object, which cannot be gone before the event
        // is acknowledged, or is a port's number.
        let about = unsafe {
            match convert::event_kind(number) {
                K::CqError => (*(*element).cq).cq_context as u64,
                K::SrqError | K::SrqLimit => (*(*element).srq).srq_context as u64,
                K::Port { .. } => (*element).port_num as u64,
                K::DeviceFatal | K::Other => 0,
                _ => (*(*element).qp).qp_context as u64,
            }
        };
        // SAFETY: got above, acknowledged once.
        unsafe { sys::ibv_ack_async_event(event.as_mut_ptr()) };
        Ok(Some((number, about)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything on it holds it, so nothing is left.
        unsafe { sys::ibv_close_device(self.raw.as_ptr()) };
    }
}

/// A protection domain.
pub(super) struct Pd {
    raw: NonNull<sys::ibv_pd>,
    _context: Arc<Context>,
}

impl Pd {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Arc<Pd>> {
        // SAFETY: an open context.
        let raw = made(unsafe { sys::ibv_alloc_pd(context.raw.as_ptr()) })?;
        Ok(Arc::new(Pd { raw, _context: Arc::clone(context) }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: made by `new`; what stands on it holds it.
        unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

/// A registered memory region; keeps the memory.
pub(super) struct Mr {
    raw: NonNull<sys::ibv_mr>,
    /// The adapter knows its pages, and would not hear of others.
    region: Pinned,
    _pd: Arc<Pd>,
}

impl Mr {
    pub(super) fn new(pd: &Arc<Pd>, region: &Region, access: Access) -> io::Result<Mr> {
        let (at, flags) = (region.addr() as *mut c_void, convert::mr_access(access) as c_int);
        let region = region.pin();
        // SAFETY: memory that `region` keeps, which is kept in turn until it is deregistered.
        let raw = made(unsafe { sys::ibv_reg_mr(pd.raw.as_ptr(), at, region.len_bytes(), flags) })?;
        Ok(Mr { raw, region, _pd: Arc::clone(pd) })
    }

    pub(super) fn keys(&self) -> MrKeys {
        // SAFETY: valid until dropped.
        let mr = unsafe { self.raw.as_ref() };
        MrKeys { lkey: LKey(mr.lkey), rkey: RKey(mr.rkey) }
    }

    /// Whether `sge` lies within this region.
    pub(super) fn holds(&self, sge: &Sge) -> bool {
        let (start, len) = (self.region.addr(), self.region.len_bytes() as u64);
        sge.addr
            .checked_sub(start)
            .and_then(|offset| offset.checked_add(u64::from(sge.len_bytes)))
            .is_some_and(|end| end <= len)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: made by `new`, ended once.
        unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
    }
}

/// Where a completion queue says that something has come, for a thread that sleeps.
pub(super) struct Channel {
    raw: NonNull<sys::ibv_comp_channel>,
    _context: Arc<Context>,
}

impl Channel {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Arc<Channel>> {
        // SAFETY: an open context.
        let raw = made(unsafe { sys::ibv_create_comp_channel(context.raw.as_ptr()) })?;
        let channel = Channel { raw, _context: Arc::clone(context) };
        // SAFETY: the channel has its descriptor open.
        rustix::io::ioctl_fionbio(unsafe { BorrowedFd::borrow_raw(channel.fd()) }, true)?;
        Ok(Arc::new(channel))
    }

    /// Readable when a queue that was armed has something.
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: valid until dropped.
        unsafe { self.raw.as_ref() }.fd.as_raw_fd()
    }

    /// Takes all announcements; gives how many there were.
    pub(super) fn drain(&self) -> usize {
        let mut taken = 0;
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is open, and there is room for the answer.
            if unsafe { sys::ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut context) } != 0 {
                return taken;
            }
            // SAFETY: an event of this queue was just taken.
            unsafe { sys::ibv_ack_cq_events(cq, 1) };
            taken += 1;
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`; queues that use it hold it.
        unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(super) struct Cq {
    raw: NonNull<sys::ibv_cq>,
    _channel: Option<Arc<Channel>>,
    _context: Arc<Context>,
}

impl Cq {
    /// A queue of at least `depth` entries; events about it carry `tag`.
    pub(super) fn new(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&Arc<Channel>>,
        tag: u64,
    ) -> io::Result<Arc<Cq>> {
        let via = channel.map_or(null_mut(), |channel| channel.raw.as_ptr());
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are open and held by the queue; `tag` is only carried.
        let raw = unsafe { sys::ibv_create_cq(context.raw.as_ptr(), depth, tag as *mut c_void, via, 0) };
        Ok(Arc::new(Cq { raw: made(raw)?, _channel: channel.cloned(), _context: Arc::clone(context) }))
    }

    /// Takes completions; `None` if the queue is broken.
    #[inline]
    pub(super) fn poll<'a>(&self, into: &'a mut [MaybeUninit<sys::ibv_wc>]) -> Option<&'a [sys::ibv_wc]> {
        let room = into.len() as i32;
        // SAFETY: room for as many entries as said.
        let taken = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), room, into.as_mut_ptr().cast()) };
        let taken = usize::try_from(taken).ok()?.min(into.len());
        // SAFETY: the library has written so many entries.
        Some(unsafe { std::slice::from_raw_parts(into.as_ptr().cast(), taken) })
    }

    /// Asks for an announcement when the next completion comes. What came before is announced too or
    /// not: poll once more before sleeping.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: a queue that was made with a channel.
        status(unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: made by `new`; queue pairs that use it hold it.
        unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

/// A shared receive queue.
pub(super) struct Srq {
    raw: NonNull<sys::ibv_srq>,
    _pd: Arc<Pd>,
}

impl Srq {
    /// A queue of at least `depth` entries; events about it carry `tag`.
    pub(super) fn new(pd: &Arc<Pd>, depth: u32, tag: u64) -> io::Result<Arc<Srq>> {
        let attr = sys::ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut init = sys::ibv_srq_init_attr { srq_context: tag as *mut c_void, attr };
        // SAFETY: a protection domain that the queue holds; `tag` is only carried.
        let raw = made(unsafe { sys::ibv_create_srq(pd.raw.as_ptr(), &mut init) })?;
        Ok(Arc::new(Srq { raw, _pd: Arc::clone(pd) }))
    }

    pub(super) fn post(&self, wr: &RecvWr) -> io::Result<()> {
        post_recv(wr, |wr, bad| {
            // SAFETY: one work request with one piece, both alive during the call. The memory is the
            // device's to check, by the key.
            unsafe { sys::ibv_post_srq_recv(self.raw.as_ptr(), wr, bad) }
        })
    }

    /// Arms the limit event.
    pub(super) fn arm_limit(&self, limit: u32) -> io::Result<()> {
        let mut attr = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as c_int;
        // SAFETY: a queue that is alive.
        status(unsafe { sys::ibv_modify_srq(self.raw.as_ptr(), &mut attr, mask) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: made by `new`; queue pairs that use it hold it.
        unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
    }
}

/// What a queue pair is made of.
#[derive(Clone)]
pub(super) struct QpParts {
    pub(super) pd: Arc<Pd>,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) srq: Option<Arc<Srq>>,
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_inline_bytes: u32,
}

impl QpParts {
    /// Whether a queue pair of these parts serves who asked for those.
    pub(super) fn same_as(&self, other: &QpParts) -> bool {
        let srq = |parts: &QpParts| parts.srq.as_ref().map(Arc::as_ptr);
        Arc::ptr_eq(&self.pd, &other.pd)
            && Arc::ptr_eq(&self.send_cq, &other.send_cq)
            && Arc::ptr_eq(&self.recv_cq, &other.recv_cq)
            && srq(self) == srq(other)
            && self.max_send_wr == other.max_send_wr
            && self.max_recv_wr == other.max_recv_wr
    }
}

/// A reliable connected queue pair.
pub(super) struct Qp {
    raw: NonNull<sys::ibv_qp>,
    /// Up to so many bytes a SEND may be copied when it is posted.
    inline_bytes: u32,
    _parts: QpParts,
}

impl Qp {
    /// A queue pair in RESET.
    pub(super) fn new(parts: &QpParts) -> io::Result<Qp> {
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut init: sys::ibv_qp_init_attr = unsafe { zeroed() };
        init.send_cq = parts.send_cq.raw.as_ptr();
        init.recv_cq = parts.recv_cq.raw.as_ptr();
        init.srq = parts.srq.as_ref().map_or(null_mut(), |srq| srq.raw.as_ptr());
        init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        init.cap.max_send_wr = parts.max_send_wr;
        init.cap.max_recv_wr = parts.max_recv_wr;
        init.cap.max_send_sge = MAX_SGE as u32;
        init.cap.max_recv_sge = u32::from(parts.srq.is_none());
        init.cap.max_inline_data = parts.max_inline_bytes;
        // SAFETY: parts that the queue pair holds.
        let raw = made(unsafe { sys::ibv_create_qp(parts.pd.raw.as_ptr(), &mut init) })?;
        Ok(Qp { raw, inline_bytes: init.cap.max_inline_data, _parts: parts.clone() })
    }

    /// Events about it carry `tag` from now on. Before it leaves RESET there are none.
    pub(super) fn set_tag(&mut self, tag: u64) {
        // SAFETY: ours alone; the library only hands it back.
        unsafe { self.raw.as_mut() }.qp_context = tag as *mut c_void;
    }

    pub(super) fn qpn(&self) -> Qpn {
        // SAFETY: valid until dropped.
        Qpn::new(unsafe { self.raw.as_ref() }.qp_num)
    }

    pub(super) fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Changes attributes, as `mask` says.
    pub(super) fn modify(&self, attr: &Attr, mask: u32) -> io::Result<()> {
        let mut attr = attr.clone();
        // SAFETY: a queue pair that is alive.
        status(unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &mut *attr, mask as c_int) })
    }

    /// Moves it to a state that needs no attributes: RESET or ERR, or SQD.
    pub(super) fn set_state(&self, state: QpState) -> io::Result<()> {
        let mut attr = Attr::none();
        attr.qp_state = convert::qp_state(state);
        self.modify(&attr, sys::ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    /// Posts to the send queue.
    ///
    /// # Safety
    /// With `inline` the pieces of memory are live memory of this process.
    #[inline]
    pub(super) unsafe fn post_send(&self, wr: &SendWr, inline: bool) -> io::Result<()> {
        let pieces = wr.sges.as_slice();
        let mut list = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SGE];
        for (to, from) in list.iter_mut().zip(pieces) {
            *to = raw_sge(from);
        }
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut raw: sys::ibv_send_wr = unsafe { zeroed() };
        raw.wr_id = wr.wr_id;
        raw.sg_list = list.as_mut_ptr();
        raw.num_sge = pieces.len() as c_int;
        raw.opcode = convert::wr_opcode(&wr.op);
        raw.send_flags = convert::send_flags(&wr.op, wr.signaled, inline);
        if let SendOp::Write(remote) | SendOp::Read(remote) = wr.op {
            raw.wr.rdma = sys::rdma_t { remote_addr: remote.addr, rkey: remote.rkey.0 };
        }
        let mut bad = null_mut();
        // SAFETY: one work request, alive during the call with its pieces. Memory that it names is the
        // device's to check, by the keys, unless it is inline, which the caller vouches for.
        status(unsafe { sys::ibv_post_send(self.raw.as_ptr(), &mut raw, &mut bad) })
    }

    /// Posts to its own receive queue.
    pub(super) fn post_recv(&self, wr: &RecvWr) -> io::Result<()> {
        post_recv(wr, |wr, bad| {
            // SAFETY: as for a shared receive queue.
            unsafe { sys::ibv_post_recv(self.raw.as_ptr(), wr, bad) }
        })
    }

    /// Ends it; gives it back with the reason if the device does not let go.
    pub(super) fn destroy(self) -> Result<(), (Qp, io::Error)> {
        // SAFETY: alive, and forgotten below if it is gone.
        match status(unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) }) {
            Ok(()) => {
                self.forget();
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Gives back what it held, without destroying it again.
    fn forget(self) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read out once, of a value that is never dropped.
        drop(unsafe { std::ptr::read(&this._parts) });
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: made by `new`, not destroyed yet.
        unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}

/// Attributes of a queue pair. The binding's structure is plain numbers, and does not say so.
pub(super) struct Attr(sys::ibv_qp_attr);

impl Attr {
    /// Attributes that say nothing.
    pub(super) fn none() -> Attr {
        // SAFETY: plain numbers, for which zero is a value.
        Attr(unsafe { zeroed() })
    }

    /// The lower half of the peer's GID: the GUID of its port, or what an IP address makes of that.
    pub(super) fn peer_interface_id(&self) -> u64 {
        // SAFETY: a GID is 16 bytes, however they are looked at.
        u64::from_be(unsafe { self.ah_attr.grh.dgid.global.interface_id })
    }
}

impl Clone for Attr {
    fn clone(&self) -> Attr {
        // SAFETY: plain numbers, which may be copied.
        Attr(unsafe { std::ptr::read(&self.0) })
    }
}

impl std::ops::Deref for Attr {
    type Target = sys::ibv_qp_attr;
    fn deref(&self) -> &sys::ibv_qp_attr {
        &self.0
    }
}

impl std::ops::DerefMut for Attr {
    fn deref_mut(&mut self) -> &mut sys::ibv_qp_attr {
        &mut self.0
    }
}

fn raw_sge(sge: &Sge) -> sys::ibv_sge {
    sys::ibv_sge { addr: sge.addr, length: sge.len_bytes, lkey: sge.lkey.0 }
}

fn post_recv(
    wr: &RecvWr,
    post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
) -> io::Result<()> {
    let mut sge = raw_sge(&wr.sge);
    let mut raw = sys::ibv_recv_wr { wr_id: wr.wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    let mut bad = null_mut();
    status(post(&mut raw, &mut bad))
}

/// A pointer that the library made, or why it did not.
fn made<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

/// Verbs that give a number give 0 or an errno; some give -1 and set errno.
fn status(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.saturating_abs())),
    }
}
