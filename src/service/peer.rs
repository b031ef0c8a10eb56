//! Who calls, and what they may (design §3).
//!
//! On the unix socket the kernel tells the caller's uid, gid and pid. Root, the daemon's own user and the configured uids and
//! gids may change state; others may read. A loopback TCP port is open to every process of the host's network, so the
//! caller's uid is looked up in the kernel's socket table and the same policy applies. A caller behind mTLS was let in by its
//! certificate and may change state.

use std::net::{IpAddr, SocketAddr};

/// Who may change state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// User ids.
    pub uids: Vec<u32>,
    /// Primary group ids.
    pub gids: Vec<u32>,
}

impl Policy {
    /// Root and the daemon's own user, beside the configured ones.
    pub fn new(mut uids: Vec<u32>, gids: Vec<u32>) -> Self {
        uids.extend([0, nix::unistd::geteuid().as_raw()]);
        uids.sort_unstable();
        uids.dedup();
        Self { uids, gids }
    }

    /// Whether this caller may change state.
    pub fn may_change(&self, caller: &Caller) -> bool {
        caller.certified
            || caller.uid.is_some_and(|uid| self.uids.contains(&uid))
            || caller.gid.is_some_and(|gid| self.gids.contains(&gid))
    }
}

/// The caller of a connection, as far as the listener knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Effective user id.
    pub uid: Option<u32>,
    /// Effective primary group id; unknown over TCP.
    pub gid: Option<u32>,
    /// Process id; unknown over TCP.
    pub pid: Option<u32>,
    /// `unix` or `tcp ADDRESS`.
    pub origin: String,
    /// It showed a client certificate that the configured authority signed.
    pub certified: bool,
}

impl Caller {
    /// Of a unix socket.
    pub fn unix(uid: Option<u32>, gid: Option<u32>, pid: Option<u32>) -> Self {
        Self { uid, gid, pid, origin: "unix".into(), certified: false }
    }

    /// Of a TCP connection.
    pub fn tcp(peer: SocketAddr, uid: Option<u32>, certified: bool) -> Self {
        Self { uid, gid: None, pid: None, origin: format!("tcp {peer}"), certified }
    }
}

/// Rpcs that change nothing. What is not listed changes state: a forgotten entry locks a reader out, never lets a writer in.
const READS: &[&str] = &[
    "/cns.v1.IpamService/ListIPConfigs",
    "/cns.v1.IpamService/ListPodIPConfigs",
    "/cns.v1.IpamService/WatchIPConfigs",
    "/cns.v1.NetworkContainerService/GetNetworkContainer",
    "/cns.v1.NetworkContainerService/ListNetworkContainers",
    "/cns.v1.NetworkContainerService/GetNetworkContainerStatus",
    "/cns.v1.NetworkContainerService/GetInterfaceForContainer",
    "/cns.v1.EndpointService/GetEndpoint",
    "/cns.v1.EndpointService/ListEndpoints",
    "/cns.v1.EndpointService/WatchEndpoints",
    "/cns.v1.NMAgentService/ListSupportedAPIs",
    "/cns.v1.NMAgentService/ListNetworkContainerVersions",
    "/cns.v1.NMAgentService/GetHomeAZ",
    "/cns.v1.NodeService/GetNodeInfo",
    "/cns.v1.NodeService/GetHostLocalIP",
    "/cns.v1.NodeService/GetCPUCores",
    "/cns.v1.NodeService/GetVMUniqueID",
    "/cns.v1.NodeService/ListNICResources",
    "/cns.v1.DeviceService/GetIBDeviceStatus",
    "/cns.v1.DebugService/GetState",
    "/cns.v1.DebugService/WatchEvents",
    "/cns.v1.DebugService/GetConfig",
    "/cns.v1.DebugService/Explain",
    "/cns.v1.DebugService/Diagnose",
    "/cns.CNS/GetNodeInfo",
];

/// Whether the rpc changes state.
pub fn changes_state(path: &str) -> bool {
    !path.starts_with("/grpc.") && !READS.contains(&path)
}

/// The uid of the process at the other end of a loopback TCP connection, from the kernel's socket table (sock_diag(7)).
/// `None` where the kernel does not know it, or where the connection is no longer whole.
///
/// A socket that no process has any more (closed, in TIME_WAIT) is reported with uid 0, which would make a stranger that
/// hung up root. So only an established socket counts, of exactly these addresses, that a process still holds. Our own end
/// is looked at last: while it is established, too, nobody else can have taken the peer's port in the meantime.
///
/// On a listener of both families an IPv4 connection has mapped addresses at our end and plain ones at the other: both are
/// taken for what they mean.
pub fn tcp_peer_uid(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let (local, peer) = (canonical(local), canonical(peer));
    let theirs = established(peer, local)?;
    established(local, peer)?;
    Some(theirs)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The owner of the established socket with exactly these addresses.
///
/// The request names one socket, so the kernel answers without walking its table; it answers within the call.
fn established(source: SocketAddr, destination: SocketAddr) -> Option<u32> {
    use nix::sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt,
        socket, sockopt::ReceiveTimeout,
    };
    use std::os::fd::AsRawFd;

    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;

    let mut request = Vec::with_capacity(72);
    request.extend(72_u32.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    request.push(family(source, destination)?);
    request.push(u8::try_from(nix::libc::IPPROTO_TCP).ok()?);
    request.extend([0, 0]);
    // The states that are wanted: the kernel heeds it only when it lists, so the answer is checked.
    request.extend((1_u32 << ESTABLISHED).to_ne_bytes());
    request.extend(addresses(source, destination));
    // Any interface, any cookie.
    request.extend([0; 4]);
    request.extend([0xff; 8]);

    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)
            .ok()?;
    let patience = nix::sys::time::TimeVal::new(0, 200_000);
    setsockopt(&socket, ReceiveTimeout, &patience).ok()?;
    sendto(socket.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty()).ok()?;
    let mut answer = [0_u8; 512];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).ok()?;
    let answer = answer.get(..length)?;
    if u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?) != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    owner(answer.get(16..)?, source, destination)
}

/// `TCP_ESTABLISHED` of the kernel's `net/tcp_states.h`.
const ESTABLISHED: u8 = 1;

/// The uid of a `struct inet_diag_msg`, if it is about the established socket with these addresses: 4 bytes (family, state,
/// timer, retransmissions), 48 of socket id (ports, addresses, interface, cookie), three counters, uid, inode.
fn owner(message: &[u8], source: SocketAddr, destination: SocketAddr) -> Option<u32> {
    let number = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    let family = i32::from(*message.first()?);
    let address = |port: usize, at: usize| {
        let port = u16::from_be_bytes(message.get(port..port + 2)?.try_into().ok()?);
        let ip: IpAddr = match family {
            nix::libc::AF_INET => <[u8; 4]>::try_from(message.get(at..at + 4)?).ok()?.into(),
            nix::libc::AF_INET6 => <[u8; 16]>::try_from(message.get(at..at + 16)?).ok()?.into(),
            _ => return None,
        };
        Some(canonical(SocketAddr::new(ip, port)))
    };
    // Without an established socket the kernel answers with a listener on the source's port, or with one in TIME_WAIT.
    let is_it = *message.get(1)? == ESTABLISHED
        && address(4, 8)? == without_scope(source)
        && address(6, 24)? == without_scope(destination);
    let (uid, inode) = (number(64)?, number(68)?);
    // No process holds a socket without an inode; its uid is a zero that means nothing.
    (is_it && inode != 0).then_some(uid)
}

/// The kernel's table has interface and flow elsewhere.
fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn family(source: SocketAddr, destination: SocketAddr) -> Option<u8> {
    let family = match (source, destination) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => nix::libc::AF_INET,
        (SocketAddr::V6(_), SocketAddr::V6(_)) => nix::libc::AF_INET6,
        _ => return None,
    };
    u8::try_from(family).ok()
}

/// Ports and addresses as `struct inet_diag_sockid` begins.
fn addresses(source: SocketAddr, destination: SocketAddr) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..2].copy_from_slice(&source.port().to_be_bytes());
    bytes[2..4].copy_from_slice(&destination.port().to_be_bytes());
    for (address, at) in [(source, 4), (destination, 20)] {
        match address {
            SocketAddr::V4(v4) => bytes[at..at + 4].copy_from_slice(&v4.ip().octets()),
            SocketAddr::V6(v6) => bytes[at..at + 16].copy_from_slice(&v6.ip().octets()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn others_may_read_and_root_owner_and_the_configured_may_change() {
        let policy = Policy::new(vec![1001], vec![77]);
        let of = |uid, gid| Caller::unix(Some(uid), Some(gid), None);
        assert!(
            policy.may_change(&of(0, 0))
                && policy.may_change(&of(1001, 5))
                && policy.may_change(&of(4242, 77))
        );
        assert!(!policy.may_change(&of(4242, 5)) && !policy.may_change(&Caller::default()));
        assert!(changes_state("/cns.v1.IpamService/RequestIPConfigs"));
        assert!(changes_state("/cns.v1.Whatever/IsNew"));
        assert!(changes_state("/cns.CNS/SetOrchestratorInfo") && !changes_state("/cns.CNS/GetNodeInfo"));
        assert!(!changes_state("/cns.v1.IpamService/ListIPConfigs"));
        assert!(!changes_state("/grpc.health.v1.Health/Check"));
    }

    #[test]
    fn the_kernel_tells_who_is_at_the_other_end_of_a_loopback_connection() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let uid = tcp_peer_uid(server.local_addr().unwrap(), peer);
            assert_eq!(uid, Some(nix::unistd::geteuid().as_raw()), "{host}");
            drop(client);
        }
    }

    /// The listener has both families, its socket is one of IPv6, the client's one of IPv4.
    #[test]
    fn an_ipv4_client_of_a_listener_of_both_families_is_known_too() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let local = server.local_addr().unwrap();
        assert!(local.is_ipv6() && peer.is_ipv6(), "{local} {peer}");
        assert_eq!(tcp_peer_uid(local, peer), Some(nix::unistd::geteuid().as_raw()));
    }

    /// The kernel says uid 0 of a socket that nobody has any more.
    #[test]
    fn a_caller_that_hung_up_is_nobody_and_not_root() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            drop(client);
            assert_eq!(tcp_peer_uid(local, peer), None, "{host}: half closed");
            drop(server);
            assert_eq!(tcp_peer_uid(local, peer), None, "{host}: in TIME_WAIT");
        }
    }

    #[test]
    fn a_listener_on_the_callers_port_is_not_the_caller() {
        let ours = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(tcp_peer_uid(ours, theirs.local_addr().unwrap()), None);
    }

    #[test]
    fn of_the_kernels_answer_only_the_very_connection_counts() {
        let (source, destination) = ("127.0.0.1:4711".parse().unwrap(), "127.0.0.1:10090".parse().unwrap());
        let message = |state: u8, uid: u32, inode: u32| {
            let mut bytes = vec![2, state, 0, 0];
            bytes.extend(addresses(source, destination));
            bytes.extend([0; 12 + 12]);
            bytes.extend([uid.to_ne_bytes(), inode.to_ne_bytes()].concat());
            bytes
        };
        assert_eq!(owner(&message(1, 1000, 5), source, destination), Some(1000));
        assert_eq!(owner(&message(1, 1000, 5), destination, source), None, "the other end");
        for state in (0..=12).filter(|state| *state != ESTABLISHED) {
            assert_eq!(owner(&message(state, 0, 5), source, destination), None, "state {state}");
        }
        assert_eq!(owner(&message(1, 0, 0), source, destination), None, "nobody holds it");
        assert_eq!(owner(&message(1, 0, 5)[..60], source, destination), None, "cut");
    }
}
