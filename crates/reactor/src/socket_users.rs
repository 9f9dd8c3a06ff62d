//! Whose the other end of a TCP connection is, where it lies on this machine: the kernel's table of sockets says so
//! (sock_diag(7)). That is good enough to share out places among those who have proved nothing, and no proof of
//! anybody: a socket keeps the user who made it, whoever holds it now.

use crate::system::check;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/tcp_states.h.
const ESTABLISHED: u8 = 1;
/// linux/inet_diag.h: any socket of these addresses.
const NO_COOKIE: [u32; 2] = [u32::MAX; 2];

/// `struct inet_diag_sockid`. Ports and addresses are in network order.
#[repr(C)]
#[derive(Clone, Copy)]
struct SocketId {
    source_port: [u8; 2],
    destination_port: [u8; 2],
    source: [u8; 16],
    destination: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
#[repr(C)]
struct Question {
    header: libc::nlmsghdr,
    family: u8,
    protocol: u8,
    extensions: u8,
    padding: u8,
    states: u32,
    id: SocketId,
}

/// `struct nlmsghdr` and `struct inet_diag_msg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Answer {
    header: libc::nlmsghdr,
    family: u8,
    state: u8,
    timer: u8,
    retransmissions: u8,
    id: SocketId,
    expiry: u32,
    receive_queue: u32,
    send_queue: u32,
    user: u32,
    inode: u32,
}

const _: () =
    assert!(size_of::<SocketId>() == 48 && size_of::<Question>() == 16 + 56 && size_of::<Answer>() == 16 + 72);

/// The user whose socket is at the address `other` and connected to our address `own`; none if it is not one of this
/// machine (and network namespace), if no process has it any more, or if the kernel does not tell.
pub(crate) fn user_of_other_end(own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let answer = ask(&question(own, other)).ok()?;
    // Of a socket that was closed the user is forgotten, and comes as root.
    let is_held = answer.state == ESTABLISHED && answer.inode != 0;
    (answer.header.nlmsg_type == SOCK_DIAG_BY_FAMILY && is_held).then_some(answer.user)
}

fn question(own: SocketAddr, other: SocketAddr) -> Question {
    // A socket for IPv6 that speaks IPv4 is found as one of IPv4.
    let (own_ip, other_ip) = (own.ip().to_canonical(), other.ip().to_canonical());
    let id = SocketId {
        source_port: other.port().to_be_bytes(),
        destination_port: own.port().to_be_bytes(),
        source: octets(other_ip),
        destination: octets(own_ip),
        interface: 0,
        cookie: NO_COOKIE,
    };
    Question {
        header: libc::nlmsghdr {
            nlmsg_len: size_of::<Question>() as u32,
            nlmsg_type: SOCK_DIAG_BY_FAMILY,
            nlmsg_flags: libc::NLM_F_REQUEST as u16,
            nlmsg_seq: 1,
            nlmsg_pid: 0,
        },
        family: if other_ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 },
        protocol: libc::IPPROTO_TCP as u8,
        extensions: 0,
        padding: 0,
        states: 1 << ESTABLISHED,
        id,
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets = address.octets(),
    }
    octets
}

/// The kernel answers before the call that asks returns.
fn ask(question: &Question) -> io::Result<Answer> {
    // SAFETY: no pointers; the descriptor is ours alone.
    let socket = unsafe {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        OwnedFd::from_raw_fd(check(libc::socket(libc::AF_NETLINK, flags, libc::NETLINK_SOCK_DIAG))?)
    };
    let size = size_of::<Question>();
    // SAFETY: the question is readable memory of that size; without an address a message goes to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), (&raw const *question).cast(), size, 0) };
    if sent != size as isize {
        return Err(io::Error::last_os_error());
    }
    let mut answer = std::mem::MaybeUninit::<Answer>::zeroed();
    // SAFETY: the answer is writable memory of that size; what is longer is cut.
    let received = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), size_of::<Answer>(), 0) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    if received < size_of::<Answer>() as isize {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: all of it was received; any bytes are a valid answer.
    Ok(unsafe { answer.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::user_of_other_end;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    const NOBODY: u32 = 65_534;

    /// Makes this thread one of another user, which the C library's call of that name does not do.
    fn become_user(user: u32) {
        // SAFETY: no pointers. The thread is this test's own.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1i32, user, -1i32) };
        assert_eq!(result, 0, "this test changes its user: run it as root, or set TABANE_CI_NO_ROOT=1 to leave it out");
    }

    /// Goal: connections of two users of this machine are told apart, by IPv4, by IPv6 and where a socket for IPv6
    /// speaks IPv4; of one that was closed, and of one that never was, nobody is told.
    /// Method: one user connects, then another one; then the latter closes its end.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "whether a test is left out is for whoever runs it")]
    fn users_of_tcp_are_told_apart() {
        if std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1") {
            return;
        }
        for (listen, connect) in [("127.0.0.1:0", None), ("[::1]:0", None), ("[::]:0", Some("127.0.0.1"))] {
            let listener = TcpListener::bind(listen).unwrap();
            let mut address = listener.local_addr().unwrap();
            if let Some(ip) = connect {
                address = SocketAddr::new(ip.parse().unwrap(), address.port());
            }
            let mut users = Vec::new();
            let mut ends = Vec::new();
            for user in [0, NOBODY] {
                become_user(user);
                let client = TcpStream::connect(address).unwrap();
                become_user(0);
                let (server, other) = listener.accept().unwrap();
                users.push(user_of_other_end(server.local_addr().unwrap(), other));
                ends.push((client, server));
            }
            assert_eq!(users, [Some(0), Some(NOBODY)], "{listen}");
            let (client, server) = ends.pop().unwrap();
            let (own, other) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
            drop(client);
            assert_eq!(user_of_other_end(own, other), None, "it was closed");
            assert_eq!(user_of_other_end(own, "192.0.2.1:9".parse().unwrap()), None, "there is none");
        }
    }
}
