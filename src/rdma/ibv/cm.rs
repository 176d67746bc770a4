//! Connection ids of librdmacm that own themselves, and its events as plain values. The only place
//! that calls librdmacm.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rdma_core_sys as sys;
use socket2::SockAddr;

use super::addresses;
use super::sys::{Attr, name_of_context};
use crate::rdma::verbs::PrivateData;

/// How long address and way of a peer are looked for, in milliseconds.
const RESOLVE_MS: c_int = 2000;
/// Connection requests that the kernel keeps for us until we look.
const BACKLOG: c_int = 256;
/// The bits of an attribute mask that user space may set: the kernel's connection manager also sets
/// some of its own above (`enum ib_qp_attr_mask`, reserved ones).
const USER_MASK: u32 = 0x001f_ffff;

/// Whether a library can be loaded; else what the loader says.
pub(super) fn loadable(library: &str) -> Result<(), String> {
    let name = CString::new(library).map_err(|error| error.to_string())?;
    // SAFETY: a C string. The handle is kept, as the library stays in use.
    if !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) }.is_null() {
        return Ok(());
    }
    // SAFETY: valid until the next call of the loader's functions in this thread.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return Err("the loader does not say why".to_owned());
    }
    // SAFETY: as above, a C string.
    Err(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

/// The device and its port that has this address.
pub(super) fn device_of(channel: &Arc<EventChannel>, address: SocketAddr) -> io::Result<(String, u8)> {
    let id = Id::new(channel, 0)?;
    id.bind(address)?;
    // SAFETY: alive; binding has set what the address says.
    let (verbs, port) = unsafe { ((*id.raw.as_ptr()).verbs, (*id.raw.as_ptr()).port_num) };
    if verbs.is_null() {
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no RDMA device has it"));
    }
    // SAFETY: librdmacm keeps the context of a device with bound ids open.
    Ok((unsafe { name_of_context(verbs) }, port))
}

/// Where events of connection ids come out.
pub(super) struct EventChannel {
    raw: NonNull<sys::rdma_event_channel>,
}

// SAFETY: librdmacm allows calls from every thread (rdma_cm(7)); the channel is only read by one.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub(super) fn new() -> io::Result<Arc<EventChannel>> {
        // SAFETY: takes nothing.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = EventChannel { raw };
        rustix::io::ioctl_fionbio(channel.fd(), true)?;
        Ok(Arc::new(channel))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until dropped.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The next event, if there is one.
    pub(super) fn next(self: &Arc<Self>) -> io::Result<Option<Event>> {
        let mut event = null_mut();
        // SAFETY: an open channel and room for a pointer.
        if unsafe { sys::rdma_get_cm_event(self.raw.as_ptr(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: an event that the library made, not acknowledged yet.
        let seen = unsafe { self.read(&*event) };
        // SAFETY: as above; afterwards nothing points into it.
        unsafe { sys::rdma_ack_cm_event(event) };
        Ok(Some(seen))
    }

    /// # Safety
    /// `event` is not acknowledged yet.
    unsafe fn read(self: &Arc<Self>, event: &sys::rdma_cm_event) -> Event {
        use sys::rdma_cm_event_type as t;
        let connects = matches!(
            event.event,
            t::RDMA_CM_EVENT_CONNECT_REQUEST
                | t::RDMA_CM_EVENT_CONNECT_RESPONSE
                | t::RDMA_CM_EVENT_ESTABLISHED
                | t::RDMA_CM_EVENT_REJECTED
                | t::RDMA_CM_EVENT_DISCONNECTED
        );
        let (mut params, mut private) = (Params::default(), PrivateData::EMPTY);
        if connects {
            // SAFETY: these events carry connection parameters, others nothing. The library has
            // zeroed what the kernel did not fill.
            let conn = unsafe { event.param.conn };
            params = Params {
                qpn: conn.qp_num,
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                retry_count: conn.retry_count,
                rnr_retry: conn.rnr_retry_count,
            };
            if !conn.private_data.is_null() {
                let len = usize::from(conn.private_data_len);
                // SAFETY: so many bytes behind the pointer, part of the event.
                let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
                private = PrivateData::new(&bytes[..len.min(crate::rdma::verbs::MAX_PRIVATE_BYTES)])
                    .unwrap_or(PrivateData::EMPTY);
            }
        }
        let asks = event.event == t::RDMA_CM_EVENT_CONNECT_REQUEST;
        let owner = if asks { event.listen_id } else { event.id };
        // SAFETY: the id of an event lives at least until it is acknowledged.
        let token = unsafe { owner.as_ref() }.map_or(0, |id| id.context as u64);
        let asker = if asks { NonNull::new(event.id) } else { None };
        let asker = asker.map(|raw| Id { raw, channel: Arc::clone(self) });
        Event { kind: event.event, status: event.status, token, asker, params, private }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id on it holds it, so none is left.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// Connection parameters as the library's event has them: seen from *our* side, whoever asked.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Params {
    /// The peer's queue pair.
    pub(super) qpn: u32,
    /// RDMA READs that we are to answer at a time.
    pub(super) responder_resources: u8,
    /// RDMA READs that we may have in flight.
    pub(super) initiator_depth: u8,
    /// Retry count for our queue pair.
    pub(super) retry_count: u8,
    /// RNR retry count for our queue pair.
    pub(super) rnr_retry: u8,
}

/// An event of a connection id.
pub(super) struct Event {
    /// `enum rdma_cm_event_type`.
    pub(super) kind: u32,
    /// A REJ's reason, or minus an errno.
    pub(super) status: i32,
    /// The token of the id; of the listener if somebody asks.
    pub(super) token: u64,
    /// The new id of a peer that asks.
    pub(super) asker: Option<Id>,
    /// What the peer said.
    pub(super) params: Params,
    /// The peer's bytes.
    pub(super) private: PrivateData,
}

/// The two ends of a connection.
#[derive(Copy, Clone, Debug)]
pub(super) struct Ends {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// What a queue pair needs of the connection manager: the way to the peer, numbers, first PSNs.
#[derive(Clone)]
pub(super) struct Attributes {
    pub(super) init: Attr,
    pub(super) rtr: Attr,
    pub(super) rtr_mask: u32,
    pub(super) rts: Attr,
    pub(super) rts_mask: u32,
}

/// A connection id.
pub(super) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: as for the channel; the id is destroyed once, by `Drop`.
unsafe impl Send for Id {}

impl Id {
    /// An id whose events carry `token`.
    pub(super) fn new(channel: &Arc<EventChannel>, token: u64) -> io::Result<Id> {
        let mut raw = null_mut();
        let tcp = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: an open channel, which the id holds; `token` is only carried.
        status(unsafe { sys::rdma_create_id(channel.raw.as_ptr(), &mut raw, token as *mut c_void, tcp) })?;
        let raw = NonNull::new(raw).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Id { raw, channel: Arc::clone(channel) })
    }

    /// Its events carry `token` from now on.
    pub(super) fn set_token(&mut self, token: u64) {
        // SAFETY: ours; the library only hands it back.
        unsafe { self.raw.as_mut() }.context = token as *mut c_void;
    }

    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let raw = SockAddr::from(scoped(address));
        // SAFETY: a socket address as long as its family says, read during the call.
        status(unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), raw.as_ptr().cast_mut().cast()) })
    }

    pub(super) fn listen(&self) -> io::Result<()> {
        // SAFETY: alive.
        status(unsafe { sys::rdma_listen(self.raw.as_ptr(), BACKLOG) })
    }

    pub(super) fn resolve_address(&self, from: SocketAddr, to: SocketAddr) -> io::Result<()> {
        let (from, to) = (SockAddr::from(scoped(from)), SockAddr::from(to));
        let (from, to) = (from.as_ptr().cast_mut().cast(), to.as_ptr().cast_mut().cast());
        // SAFETY: socket addresses as long as their families say, read during the call.
        status(unsafe { sys::rdma_resolve_addr(self.raw.as_ptr(), from, to, RESOLVE_MS) })
    }

    pub(super) fn resolve_route(&self) -> io::Result<()> {
        // SAFETY: alive, with a resolved address.
        status(unsafe { sys::rdma_resolve_route(self.raw.as_ptr(), RESOLVE_MS) })
    }

    pub(super) fn connect(&self, params: &Params, srq: bool, private: &[u8]) -> io::Result<()> {
        let mut param = conn_param(params, srq, private)?;
        // SAFETY: alive; the private data outlive the call.
        status(unsafe { sys::rdma_connect(self.raw.as_ptr(), &mut param) })
    }

    pub(super) fn accept(&self, params: &Params, srq: bool, private: &[u8]) -> io::Result<()> {
        let mut param = conn_param(params, srq, private)?;
        // SAFETY: alive; the private data outlive the call.
        status(unsafe { sys::rdma_accept(self.raw.as_ptr(), &mut param) })
    }

    /// Refuses with reason 28, consumer defined: the library knows no other.
    pub(super) fn reject(&self, private: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: alive; so many bytes are there.
        status(unsafe { sys::rdma_reject(self.raw.as_ptr(), private.as_ptr().cast(), len) })
    }

    /// Sends the RTU.
    pub(super) fn establish(&self) -> io::Result<()> {
        // SAFETY: alive.
        status(unsafe { sys::rdma_establish(self.raw.as_ptr()) })
    }

    /// Sends a DREQ, or the DREP to the peer's.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: alive.
        status(unsafe { sys::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// The addresses of both sides.
    pub(super) fn ends(&self) -> Option<Ends> {
        // SAFETY: alive; both unions have room for every family, and hold what their family says.
        unsafe {
            let addr = &raw const (*self.raw.as_ptr()).route.addr;
            let local = addresses::from_raw((&raw const (*addr).src_addr_union).cast())?;
            let remote = addresses::from_raw((&raw const (*addr).dst_addr_union).cast())?;
            Some(Ends { local: canonical(local), remote: canonical(remote) })
        }
    }

    /// What the queue pair of this connection needs, once the peer's numbers are known.
    pub(super) fn attributes(&self) -> io::Result<Attributes> {
        use sys::ibv_qp_state as s;
        let (init, _) = self.attributes_for(s::IBV_QPS_INIT)?;
        let (rtr, rtr_mask) = self.attributes_for(s::IBV_QPS_RTR)?;
        let (rts, rts_mask) = self.attributes_for(s::IBV_QPS_RTS)?;
        Ok(Attributes { init, rtr, rtr_mask, rts, rts_mask })
    }

    fn attributes_for(&self, state: u32) -> io::Result<(Attr, u32)> {
        let (mut attr, mut mask) = (Attr::none(), 0);
        attr.qp_state = state;
        // SAFETY: alive, and room for the answer.
        status(unsafe { sys::rdma_init_qp_attr(self.raw.as_ptr(), &mut *attr, &mut mask) })?;
        Ok((attr, mask as u32 & USER_MASK))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: ours, once. Waits until its events are acknowledged, which `EventChannel::next` does
        // before anybody sees them.
        unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        let _ = &self.channel;
    }
}

fn conn_param(params: &Params, srq: bool, private: &[u8]) -> io::Result<sys::rdma_conn_param> {
    // SAFETY: numbers and a pointer, for which zero is a value.
    let mut raw: sys::rdma_conn_param = unsafe { zeroed() };
    raw.private_data = private.as_ptr().cast();
    raw.private_data_len = u8::try_from(private.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    raw.responder_resources = params.responder_resources;
    raw.initiator_depth = params.initiator_depth;
    raw.flow_control = 1;
    raw.retry_count = params.retry_count;
    raw.rnr_retry_count = params.rnr_retry;
    raw.srq = srq.into();
    raw.qp_num = params.qpn;
    Ok(raw)
}

/// A link-local address with the interface that has it, if none was named.
fn scoped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            let same = |other: &SocketAddr| other.ip() == address.ip();
            let mut found = addresses::local().into_iter().find(same).unwrap_or(address);
            found.set_port(address.port());
            found
        }
        other => other,
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 @ IpAddr::V4(_) => SocketAddr::new(v4, address.port()),
        IpAddr::V6(_) => address,
    }
}

fn status(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
