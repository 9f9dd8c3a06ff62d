//! The addresses of this machine's network interfaces, and which of them leads to everywhere else.

use crate::system::check;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub address: IpAddr,
    /// Whether the interface is switched on.
    pub is_up: bool,
}

impl Interface {
    /// Whether the address means the same machine to everybody: no loopback, and none of those that hold on one link
    /// only.
    pub fn is_of_use_elsewhere(&self) -> bool {
        let local = match self.address {
            IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
            IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
        };
        !local && !self.address.is_loopback()
    }
}

/// All addresses of all interfaces, in the kernel's order.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the kernel's list is put into a place of ours.
    check(unsafe { libc::getifaddrs(&mut first) })?;
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list ends with null and lives until it is freed below; names end with NUL; an address is as long as
    // its family says, and everything is copied before that.
    unsafe {
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let Some(family) = entry.ifa_addr.as_ref().map(|address| i32::from(address.sa_family)) else { continue };
            let address = match family {
                libc::AF_INET => {
                    let raw = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::V4(Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes()))
                }
                libc::AF_INET6 => {
                    let raw = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::V6(Ipv6Addr::from(raw.sin6_addr.s6_addr))
                }
                _ => continue,
            };
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            found.push(Interface { name, address, is_up: entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0 });
        }
        libc::freeifaddrs(first);
    }
    Ok(found)
}

/// The addresses of all interfaces that are switched on; none when the kernel does not tell.
pub(crate) fn own_addresses() -> Vec<IpAddr> {
    let all = interfaces().unwrap_or_default();
    all.into_iter().filter(|interface| interface.is_up).map(|interface| interface.address).collect()
}

/// The address from which packets for elsewhere leave, by the routes of this machine; nothing is sent.
pub fn default_source() -> Option<IpAddr> {
    // Addresses of documentation (RFC 5737, RFC 3849), which no route but the default one leads to.
    let targets =
        [(IpAddr::V4(Ipv4Addr::UNSPECIFIED), "192.0.2.1:9"), (IpAddr::V6(Ipv6Addr::UNSPECIFIED), "[2001:db8::1]:9")];
    targets.into_iter().find_map(|(any, target)| {
        let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the loopback interface is found with its address, and is of no use elsewhere.
    #[test]
    fn loopback_is_there() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|interface| interface.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(loopback.is_up && loopback.name == "lo" && !loopback.is_of_use_elsewhere());
        let link_local = Interface { name: "eth0".to_owned(), address: "fe80::1".parse().unwrap(), is_up: true };
        assert!(!link_local.is_of_use_elsewhere());
    }
}
