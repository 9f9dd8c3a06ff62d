//! Which of a host's addresses its servers listen at.

use reactor::interfaces::Interface;
use std::net::IpAddr;

/// What --interface asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    Any,
    Name(String),
    /// An address and the bits of it that count.
    Network(IpAddr, u32),
}

impl Choice {
    /// Reads the value of --interface; nothing stands for `Any`. The error says what is wanted.
    pub fn parse(text: &str) -> Result<Choice, String> {
        let address = text.split(['/', '%']).next().unwrap_or_default().parse();
        if address.is_ok_and(is_link_local) {
            return Err(format!(
                "\"{text}\" is link-local: such addresses hold on one cable only, and that of a server has to mean the \
                 same on all hosts; name an interface or a network with other addresses (fd00::/8 is free for private \
                 ones)"
            ));
        }
        let Some((address, bits)) = text.split_once('/') else {
            return Ok(match text.parse() {
                _ if text.is_empty() => Choice::Any,
                Ok(address) => Choice::Network(address, width(address)),
                Err(_) => Choice::Name(text.to_owned()),
            });
        };
        let wanted = || {
            format!("\"{text}\" is no network; NAME or ADDRESS/BITS is wanted, such as eth0, 10.1.0.0/16 or fd00::/64")
        };
        let address: IpAddr = address.parse().map_err(|_| wanted())?;
        let bits: u32 = bits.parse().map_err(|_| wanted())?;
        if bits > width(address) { Err(wanted()) } else { Ok(Choice::Network(address, bits)) }
    }

    pub fn text(&self) -> String {
        match self {
            Choice::Any => String::new(),
            Choice::Name(name) => name.clone(),
            Choice::Network(address, bits) => format!("{address}/{bits}"),
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let shift = width(network) - bits;
    let head = |address: IpAddr| number(address).checked_shr(shift).unwrap_or(0);
    address.is_ipv4() == network.is_ipv4() && head(address) == head(network)
}

/// The address of this host. `named` are the addresses that its name stands for, `default` the one of the default
/// route; both are asked only where they decide. Errors: words.
pub fn choose(
    choice: &Choice,
    interfaces: &[Interface],
    named: &dyn Fn() -> Vec<IpAddr>,
    default: &dyn Fn() -> Option<IpAddr>,
) -> Result<IpAddr, String> {
    match choice {
        Choice::Network(network, bits) => {
            let within: Vec<&Interface> = interfaces
                .iter()
                .filter(|interface| interface.is_up && is_within(interface.address, *network, *bits))
                .collect();
            let useful = within.iter().find(|interface| interface.is_of_use_elsewhere());
            let found = useful.or_else(|| within.iter().find(|interface| interface.address.is_loopback()));
            found.map(|interface| interface.address).ok_or_else(|| {
                format!("has no address within {} (--interface); it has {}", choice.text(), list_words(interfaces))
            })
        }
        Choice::Name(name) => of_interface(name, interfaces),
        Choice::Any => any(interfaces, named, default),
    }
}

fn of_interface(name: &str, interfaces: &[Interface]) -> Result<IpAddr, String> {
    let own: Vec<&Interface> = interfaces.iter().filter(|interface| interface.name == name).collect();
    let fit = |v4: bool| {
        own.iter().find(|own| own.address.is_ipv4() == v4 && (own.is_of_use_elsewhere() || own.address.is_loopback()))
    };
    let Some(found) = fit(true).or_else(|| fit(false)) else {
        return Err(match own.first() {
            Some(local) => format!(
                "interface {name} has no address that holds for other hosts, only {}; give it one, or name another \
                 --interface",
                local.address
            ),
            None => format!("has no interface {name} with an address (--interface); it has {}", list_words(interfaces)),
        });
    };
    if found.is_up { Ok(found.address) } else { Err(format!("interface {name} is switched off")) }
}

fn any(
    interfaces: &[Interface],
    named: &dyn Fn() -> Vec<IpAddr>,
    default: &dyn Fn() -> Option<IpAddr>,
) -> Result<IpAddr, String> {
    let useful: Vec<IpAddr> = interfaces
        .iter()
        .filter(|interface| interface.is_up && interface.is_of_use_elsewhere())
        .map(|interface| interface.address)
        .collect();
    match useful[..] {
        [] => {
            return Err(
                "has no address beside loopback; switch a network on, or choose with --interface lo for one host alone"
                    .to_owned(),
            );
        }
        [only] => return Ok(only),
        _ => {}
    }
    let chosen = named().into_iter().find(|address| useful.contains(address));
    let chosen = chosen.or_else(|| default().filter(|address| useful.contains(address)));
    Ok(chosen.or_else(|| useful.iter().copied().find(IpAddr::is_ipv4)).unwrap_or(useful[0]))
}

fn list_words(interfaces: &[Interface]) -> String {
    let words: Vec<String> =
        interfaces.iter().map(|interface| format!("{} {}", interface.name, interface.address)).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        Interface { name: name.to_owned(), address: address.parse().unwrap(), is_up: true }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1"),
            interface("lo", "::1"),
            interface("eth0", "192.168.1.5"),
            interface("eth0", "fd00::5"),
            interface("eth0", "fe80::5"),
            interface("ib0", "10.1.2.3"),
            interface("ib1", "fe80::6"),
        ]
    }

    fn chosen(choice: &str, named: &[&str], default: Option<&str>) -> Result<String, String> {
        let named = || named.iter().map(|address| address.parse().unwrap()).collect();
        let default = || default.map(|address| address.parse().unwrap());
        choose(&Choice::parse(choice)?, &host(), &named, &default).map(|address| address.to_string())
    }

    /// Goal: names, networks of both families and none at all lead to the documented address.
    #[test]
    fn choices() {
        assert_eq!(chosen("ib0", &[], None).unwrap(), "10.1.2.3");
        assert_eq!(chosen("eth0", &[], None).unwrap(), "192.168.1.5");
        assert_eq!(chosen("10.1.0.0/16", &[], None).unwrap(), "10.1.2.3");
        assert_eq!(chosen("fd00::/64", &[], None).unwrap(), "fd00::5");
        assert_eq!(chosen("0.0.0.0/0", &[], None).unwrap(), "192.168.1.5");
        assert_eq!(chosen("127.0.0.1", &[], None).unwrap(), "127.0.0.1");
        assert_eq!(chosen("lo", &[], None).unwrap(), "127.0.0.1");
        assert_eq!(chosen("", &["10.1.2.3"], Some("192.168.1.5")).unwrap(), "10.1.2.3");
        assert_eq!(chosen("", &["127.0.1.1"], Some("192.168.1.5")).unwrap(), "192.168.1.5");
        assert_eq!(chosen("", &[], None).unwrap(), "192.168.1.5");
    }

    /// Goal: what is not there is refused with what is.
    #[test]
    fn refusals() {
        assert!(chosen("eth7", &[], None).unwrap_err().contains("ib0 10.1.2.3"));
        assert!(chosen("10.9.0.0/16", &[], None).unwrap_err().contains("10.9.0.0/16"));
        assert!(chosen("ib1", &[], None).unwrap_err().contains("fe80::6"));
        for text in ["fe80::/10", "fe80::5", "fe80::5%eth0", "169.254.0.0/16"] {
            assert!(chosen(text, &[], None).unwrap_err().contains("link-local"), "{text}");
        }
        assert!(Choice::parse("10.1.0.0/33").is_err() && Choice::parse("x/8").is_err());
        let none = choose(&Choice::Any, &host()[..2], &Vec::new, &|| None);
        assert!(none.unwrap_err().contains("loopback"));
    }
}
