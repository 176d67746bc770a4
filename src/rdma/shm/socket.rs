//! The UNIX socket of a connection: messages with descriptors beside, and who is at its other end.
//!
//! No call waits. The socket is also the bell: unlike an eventfd that a peer hands us, it is ours, and
//! nothing that the peer does to its end can make a send wait.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};

use crate::rdma::verbs::Process;
use crate::wire::shm::{MAX_LEN, Message};

/// A message as it was received.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) len_bytes: usize,
    /// The descriptor that came with it.
    pub(super) descriptor: Option<OwnedFd>,
}

/// What a look at a socket found.
#[derive(Debug)]
pub(super) enum Look {
    /// A message, in the buffer that was given.
    Message(Received),
    /// Nothing now.
    Nothing,
    /// The other end is gone, or the socket is of no use.
    Gone,
}

/// Connects to the socket at `path`.
pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The next connection of a listening socket.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The process at the other end, if it may be there: of our own user or of root.
///
/// # Errors
/// In words who it is.
pub(super) fn peer_of(socket: &OwnedFd) -> Result<Process, String> {
    let credentials = rustix::net::sockopt::socket_peercred(socket).map_err(|errno| errno.to_string())?;
    let (pid, uid) = (credentials.pid.as_raw_pid().unsigned_abs(), credentials.uid.as_raw());
    let ours = rustix::process::geteuid().as_raw();
    if uid == ours || uid == 0 {
        return Ok(Process { pid, uid });
    }
    Err(format!("process {pid} is of user {uid}; only user {ours} and root share memory with this process"))
}

/// Sends a message, with a descriptor beside. Never waits: a peer that does not read its messages is
/// an error as one that is gone.
pub(super) fn send(
    socket: &OwnedFd,
    message: &Message<'_>,
    beside: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = [0; MAX_LEN];
    let len = message.emit(&mut bytes);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let beside = beside.as_slice();
    if !beside.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(beside));
        debug_assert!(pushed, "the space is for one descriptor");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&bytes[..len])], &mut control, flags)?;
    Ok(())
}

/// Takes the next message. More than one descriptor beside is closed again.
pub(super) fn receive(socket: &OwnedFd, bytes: &mut [u8; MAX_LEN]) -> Look {
    // Room for more than one, so that a peer that sends two is seen to.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut take = || recvmsg(socket.as_fd(), &mut [IoSliceMut::new(bytes)], &mut control, flags);
    // A peer that closes before it has read all of ours is told of first; its last words come after.
    let received = match take().or_else(|errno| if errno == Errno::CONNRESET { take() } else { Err(errno) }) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Look::Nothing,
        Err(_) => return Look::Gone,
    };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.flatten().fold(None, |first, next| first.or(Some(next)));
    // An empty message is nobody's: the end of the stream, or a peer that wants it to be.
    match received.bytes {
        0 => Look::Gone,
        len_bytes => Look::Message(Received { len_bytes, descriptor }),
    }
}
