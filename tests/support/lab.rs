//! Network namespaces for one test: a "host", any number of "pods", and a "world" behind the host's uplink. Nothing
//! touches the machine's own network.

use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use cns::nic::{Link, Netns};
use ipnet::IpNet;
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tempfile::TempDir;

use crate::need;

const PATIENCE: Duration = Duration::from_secs(3);

/// The addresses of the uplink's two ends.
pub const HOST_V4: &str = "192.0.2.1";
pub const HOST_V6: &str = "2001:db8::1";
pub const WORLD_V4: &str = "192.0.2.2";
pub const WORLD_V6: &str = "2001:db8::2";
/// MTU of the uplink: no default, so that it is seen when it is inherited.
pub const UPLINK_MTU: u32 = 1400;

/// A namespace with a path, as a container runtime makes one.
pub struct Space {
    pub netns: Netns,
    path: PathBuf,
}

impl Space {
    fn new(directory: &Path, name: &str) -> Self {
        let path = directory.join(name);
        fs::write(&path, "").unwrap();
        let target = path.clone();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let made = Some("/proc/thread-self/ns/net");
            mount(made, &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        })
        .join()
        .unwrap();
        Self { netns: Netns::open(&path).unwrap(), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An rtnetlink handle inside, for what the test does behind the back of the code under test.
    pub fn rtnetlink(&self) -> Handle {
        let runtime = tokio::runtime::Handle::current();
        let (connection, handle, _) = self
            .netns
            .run(|| {
                let _entered = runtime.enter();
                rtnetlink::new_connection()
            })
            .unwrap()
            .unwrap();
        tokio::spawn(connection);
        handle
    }

    pub async fn links(&self) -> Vec<Link> {
        self.netns.netlink().unwrap().links().await.unwrap()
    }

    pub async fn link_names(&self) -> Vec<String> {
        self.links().await.into_iter().map(|link| link.name).collect()
    }

    pub async fn addresses(&self, ifname: &str) -> Vec<IpNet> {
        let netlink = self.netns.netlink().unwrap();
        let link = netlink.link(ifname).await.unwrap().unwrap();
        netlink.addresses(&link).await.unwrap()
    }

    /// The value of a setting below `/proc/sys/net`.
    pub fn sysctl(&self, key: &str) -> String {
        let path = Path::new("/proc/sys/net").join(key);
        self.netns.run(|| fs::read_to_string(path).unwrap().trim().to_owned()).unwrap()
    }

    pub fn set_sysctl(&self, key: &str, value: &str) {
        let path = Path::new("/proc/sys/net").join(key);
        self.netns.run(|| fs::write(path, value).unwrap()).unwrap();
    }

    pub async fn delete_link(&self, name: &str) {
        let handle = self.rtnetlink();
        let index = self.index(name).await;
        handle.link().del(index).execute().await.unwrap();
    }

    pub async fn set_up(&self, name: &str) {
        let handle = self.rtnetlink();
        let index = self.index(name).await;
        handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await.unwrap();
    }

    pub async fn set_down(&self, name: &str) {
        let handle = self.rtnetlink();
        let index = self.index(name).await;
        handle.link().set(LinkUnspec::new_with_index(index).down().build()).execute().await.unwrap();
    }

    pub async fn add_address(&self, name: &str, address: &str) {
        let net: IpNet = address.parse().unwrap();
        let index = self.index(name).await;
        let handle = self.rtnetlink();
        handle.address().add(index, net.addr(), net.prefix_len()).execute().await.unwrap();
    }

    pub async fn add_default_route(&self, gateway: &str) {
        let gateway: IpAddr = gateway.parse().unwrap();
        let route = match gateway {
            IpAddr::V4(gateway) => RouteMessageBuilder::<std::net::Ipv4Addr>::new().gateway(gateway).build(),
            IpAddr::V6(gateway) => RouteMessageBuilder::<std::net::Ipv6Addr>::new().gateway(gateway).build(),
        };
        self.rtnetlink().route().add(route).execute().await.unwrap();
    }

    /// Deletes the main table's route to `destination`.
    pub async fn delete_route(&self, destination: &str) {
        let net: IpNet = destination.parse().unwrap();
        let route = match net {
            IpNet::V4(net) => RouteMessageBuilder::<std::net::Ipv4Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .scope(rtnetlink::packet_route::route::RouteScope::NoWhere)
                .build(),
            IpNet::V6(net) => RouteMessageBuilder::<std::net::Ipv6Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .build(),
        };
        self.rtnetlink().route().del(route).execute().await.unwrap();
    }

    async fn index(&self, name: &str) -> u32 {
        let netlink = self.netns.netlink().unwrap();
        netlink.link(name).await.unwrap().unwrap_or_else(|| panic!("no link {name}")).index
    }

    /// Answers over TCP and UDP on `address` whatever is sent, with the sender's address before it. Ends with the process.
    pub fn serve(&self, address: &str) -> Server {
        self.serve_on(address, 0)
    }

    /// The same on a port that must be this one.
    pub fn serve_on(&self, address: &str, port: u16) -> Server {
        let address: IpAddr = address.parse().unwrap();
        let (listener, socket) = self
            .netns
            .run(|| -> io::Result<_> {
                let listener = TcpListener::bind((address, port))?;
                let socket = UdpSocket::bind((address, listener.local_addr()?.port()))?;
                Ok((listener, socket))
            })
            .unwrap()
            .unwrap_or_else(|error| panic!("cannot listen on {address}: {error}"));
        let server = Server(listener.local_addr().unwrap());
        thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(mut connection) = connection else { continue };
                let peer = connection.peer_addr().map(|peer| peer.ip().to_string()).unwrap_or_default();
                let _ = connection.write_all(peer.as_bytes());
            }
        });
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(peer.ip().to_string().as_bytes(), peer);
            }
        });
        server
    }

    /// Asks a server over TCP; gives the address under which it saw us.
    pub fn tcp(&self, server: Server) -> io::Result<String> {
        self.netns
            .run(|| {
                let mut stream = TcpStream::connect_timeout(&server.0, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer)
            })
            .unwrap()
    }

    /// Asks a server over UDP with a single datagram: nothing is sent again, so a first packet that is lost is seen.
    pub fn udp(&self, server: Server) -> io::Result<String> {
        self.netns
            .run(|| {
                let any: IpAddr = if server.0.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
                let socket = UdpSocket::bind((any, 0))?;
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.connect(server.0)?;
                socket.send(b"?")?;
                let mut buffer = [0; 64];
                let length = socket.recv(&mut buffer)?;
                Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
            })
            .unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&self.path);
    }
}

/// Where a server listens.
#[derive(Clone, Copy)]
pub struct Server(SocketAddr);

/// The namespaces of one test.
pub struct Lab {
    pub host: Space,
    pub world: Space,
    // Last: the namespaces are mounted in it.
    directory: TempDir,
}

impl Lab {
    /// A host with forwarding off and an uplink to the world; or `None`, said aloud, where none can be made.
    pub async fn new(test: &str) -> Option<Self> {
        if !need::need_root(test) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let host = Space::new(directory.path(), "host");
        let world = Space::new(directory.path(), "world");
        let pair = LinkVeth::new("uplink", "downlink").mtu(UPLINK_MTU).build();
        host.rtnetlink().link().add(pair).execute().await.unwrap();
        let away = LinkUnspec::new_with_name("downlink")
            .setns_by_fd(std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&world.netns)))
            .build();
        host.rtnetlink().link().set(away).execute().await.unwrap();
        for (space, name, v4, v6) in
            [(&host, "uplink", HOST_V4, HOST_V6), (&world, "downlink", WORLD_V4, WORLD_V6)]
        {
            space.set_up("lo").await;
            // Without duplicate address detection an address can be used at once.
            space.set_sysctl(&format!("ipv6/conf/{name}/accept_dad"), "0");
            space.set_up(name).await;
            space.add_address(name, &format!("{v4}/24")).await;
            space.add_address(name, &format!("{v6}/64")).await;
        }
        // The kernel works up later that the links have a carrier and that the IPv6 addresses are its own.
        for (space, name, v6) in [(&host, "uplink", HOST_V6), (&world, "downlink", WORLD_V6)] {
            let netlink = space.netns.netlink().unwrap();
            while !netlink.link(name).await.unwrap().unwrap().operational {
                tokio::task::yield_now().await;
            }
            let usable = || space.netns.run(|| UdpSocket::bind((v6, 0)).is_ok()).unwrap();
            while !usable() {
                thread::yield_now();
            }
        }
        host.add_default_route(WORLD_V4).await;
        host.add_default_route(WORLD_V6).await;
        Some(Self { host, world, directory })
    }

    /// A namespace for a pod, with nothing in it but a loopback.
    pub fn pod(&self, name: &str) -> Space {
        Space::new(self.directory.path(), name)
    }

    /// A directory that goes with the test.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}
