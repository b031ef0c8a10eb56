//! ADD: addresses from the daemon, a wired sandbox, a record of both; all or nothing.

use cns::{
    model::{Family, PodIdentity},
    nic::{Attachment, Netns, NetnsError, Transparent, Undo, WireSpec, Wired, gateway},
    proto::v1 as pb,
};
use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::{
    daemon::{Invocation, attachment, identity, interface_id},
    environment::{Command, Environment},
    error::{CniError, Code},
    intent::{Intent, Intents},
    netconf::NetConf,
    result::{AddResult, Interface, Ip, Route},
};

pub(crate) async fn run(environment: &Environment, netconf: &NetConf) -> Result<Value, CniError> {
    let invocation = Invocation::begin(Command::Add, netconf)?;
    let attachment = attachment(environment, netconf)?;
    let host = Netns::current().map_err(|error| CniError::of_nic("cannot wire", &error.into()))?;
    let pod = open_sandbox(environment, &host)?;
    let plane = Transparent::new(host).map_err(|error| CniError::of_nic("cannot wire", &error))?;
    let intents = Intents::at(&netconf.intent_dir);
    let before = intents.read(&attachment);
    intents.write(&attachment, &Intent::new(&attachment, &pod, invocation.began))?;
    let add = Add { invocation, attachment, pod, plane, intents, names: &environment.pod, netconf };

    let mut undo = Undo::new();
    let error = match add.run(&mut undo).await {
        Ok(result) => return result.into_json(netconf.cni_version),
        Err(error) => error.details(format!("request {}", add.invocation.id)),
    };
    match undo.run().await {
        // An earlier ADD of the same attachment stands, and so does its record.
        Ok(()) if before.is_none() => {
            add.forget().await;
            Err(error)
        }
        Ok(()) => Err(error),
        Err(undone) => Err(error.details(format!("taking back failed, DEL will repeat it: {undone}"))),
    }
}

fn open_sandbox(environment: &Environment, host: &Netns) -> Result<Netns, CniError> {
    let path = environment.netns.clone().unwrap_or_default();
    Netns::open_pod(path, host).map_err(|error| {
        let code = match error {
            NetnsError::Gone { .. } | NetnsError::Own { .. } => Code::Environment,
            _ => Code::Dataplane,
        };
        CniError::new(code, format!("CNI_NETNS: {error}"))
    })
}

/// Whose an attachment is, by its intent record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    ThisRun,
    /// A later ADD's.
    Another,
    /// A DEL has been there.
    Nobody,
}

struct Add<'a> {
    invocation: Invocation,
    attachment: Attachment,
    pod: Netns,
    plane: Transparent,
    intents: Intents,
    names: &'a PodIdentity,
    netconf: &'a NetConf,
}

impl Add<'_> {
    async fn run<'a>(&'a self, undo: &mut Undo<'a>) -> Result<AddResult, CniError> {
        let granted = self.request(undo).await?;
        let spec = self.wire_spec(&granted.pod_ip_infos)?;
        let wired = self.wire(&spec).await?;
        if !granted.repeated_request {
            undo.push("take the interface away", self.unwire());
        }
        self.record(&wired).await?;
        Ok(self.result(&spec, &wired))
    }

    /// Whether the attachment still is this run's.
    fn owner(&self) -> Owner {
        match self.intents.read(&self.attachment) {
            Some(intent) if intent.began == self.invocation.began.nanos() => Owner::ThisRun,
            Some(_) => Owner::Another,
            None => Owner::Nobody,
        }
    }

    async fn wire(&self, spec: &WireSpec) -> Result<Wired, CniError> {
        let _lock = self.intents.lock(&self.attachment).await?;
        if self.owner() != Owner::ThisRun {
            return Err(CniError::new(
                Code::Refused,
                format!(
                    "{} was deleted or added again since this ADD began; it is given up",
                    self.attachment
                ),
            ));
        }
        let wired = self.plane.wire(&self.pod, spec).await;
        wired.map_err(|error| CniError::of_nic("cannot wire the sandbox", &error))
    }

    async fn unwire(&self) -> Result<(), CniError> {
        let _lock = self.intents.lock(&self.attachment).await?;
        if self.owner() == Owner::Another {
            return Ok(());
        }
        let unwired = self.plane.unwire(Some(&self.pod), &self.attachment).await;
        unwired.map(drop).map_err(|error| CniError::new(Code::Dataplane, error.to_string()))
    }

    /// Removes this run's intent. If that fails, it is what DEL and GC expect.
    async fn forget(&self) {
        if let Ok(_lock) = self.intents.lock(&self.attachment).await
            && self.owner() == Owner::ThisRun
        {
            let _ = self.intents.remove(&self.attachment);
        }
    }

    async fn request<'a>(&'a self, undo: &mut Undo<'a>) -> Result<pb::RequestIpConfigsResponse, CniError> {
        let netns = self.pod.id();
        let request = pb::RequestIpConfigsRequest {
            pod: Some(identity(self.names)),
            infra_container_id: self.attachment.container().to_string(),
            pod_interface_id: interface_id(&self.attachment),
            ifname: self.attachment.ifname().to_string(),
            desired_ip_addresses: self.netconf.desired.iter().map(ToString::to_string).collect(),
            sandbox: Some(pb::Sandbox {
                netns_path: self.pod.path().display().to_string(),
                netns_inode: netns.inode,
                netns_device: netns.device,
            }),
            began_boottime_ns: Some(self.invocation.began.nanos()),
            ..Default::default()
        };
        let answer = self.invocation.client.request_ip_configs(request).await;
        // An answer that was lost may have been a grant.
        let granted = match &answer {
            // What an earlier ADD holds is its DEL's to release.
            Ok(granted) => !granted.repeated_request,
            Err(cns_client::Error::Interrupted { .. } | cns_client::Error::Timeout { .. }) => true,
            Err(_) => false,
        };
        if granted {
            undo.push("release the addresses", self.invocation.release(&self.attachment, self.names));
        }
        answer.map_err(|error| CniError::of_call("cannot get addresses", &error))
    }

    fn wire_spec(&self, infos: &[pb::PodIpInfo]) -> Result<WireSpec, CniError> {
        let mut spec = WireSpec {
            attachment: self.attachment.clone(),
            addresses: Vec::with_capacity(infos.len()),
            routes: Vec::new(),
            skip_default_routes: false,
            parent: self.netconf.master.clone(),
        };
        for info in infos {
            let nic = info.nic_type();
            if !matches!(nic, pb::NicType::Infra | pb::NicType::Unspecified) {
                return Err(CniError::new(
                    Code::Unsupported,
                    format!(
                        "the pod has an interface of type {}, which this version of cns-cni cannot wire",
                        nic.as_str_name()
                    ),
                ));
            }
            spec.addresses.push(address(info)?);
            spec.skip_default_routes |= info.skip_default_routes;
            for route in &info.routes {
                let parsed = route.destination.parse::<IpNet>();
                spec.routes.push(parsed.map_err(|error| malformed(&route.destination, &error))?);
            }
        }
        Ok(spec)
    }

    /// Tells the daemon what was wired. It refuses if the container was deleted meanwhile, and then all is taken back.
    async fn record(&self, wired: &Wired) -> Result<(), CniError> {
        let request = pb::UpdateEndpointRequest {
            container_id: self.attachment.container().to_string(),
            pod: Some(identity(self.names)),
            interfaces: vec![pb::EndpointInterface {
                ifname: self.attachment.ifname().to_string(),
                nic_type: pb::NicType::Infra.into(),
                host_veth_name: wired.host.name.clone(),
                mac_address: wired.pod.mac.map(|mac| mac.to_string()).unwrap_or_default(),
                ..Default::default()
            }],
            sandbox: None,
            began_boottime_ns: Some(self.invocation.began.nanos()),
        };
        let recorded = self.invocation.client.update_endpoint(request).await;
        recorded.map(drop).map_err(|error| CniError::of_call("cannot record the interface", &error))
    }

    fn result(&self, spec: &WireSpec, wired: &Wired) -> AddResult {
        let mut result = self.netconf.previous.clone().unwrap_or_default();
        let of = |link: &cns::nic::Link, sandbox: String| Interface {
            name: link.name.clone(),
            mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: Some(link.mtu),
            sandbox,
            other: Map::new(),
        };
        result.push_interface(of(&wired.host, String::new()));
        let index = result.push_interface(of(&wired.pod, self.pod.path().display().to_string()));
        result.ips.extend(spec.addresses.iter().map(|address| Ip {
            version: None,
            address: *address,
            gateway: Some(gateway(Family::of(address.addr()))),
            interface: Some(index),
            other: Map::new(),
        }));
        result.routes.extend(wired.routes.iter().map(|route| Route {
            dst: route.destination,
            gw: route.gateway,
            other: Map::new(),
        }));
        if let Value::Object(dns) = &self.netconf.dns
            && !dns.is_empty()
        {
            result.dns.clone_from(dns);
        }
        result
    }
}

fn address(info: &pb::PodIpInfo) -> Result<IpNet, CniError> {
    let subnet = info.pod_ip_config.clone().unwrap_or_default();
    let text = format!("{}/{}", subnet.ip_address, subnet.prefix_length);
    text.parse().map_err(|error| malformed(&text, &error))
}

fn malformed(text: &str, error: &ipnet::AddrParseError) -> CniError {
    CniError::new(Code::Refused, format!("the daemon answered with `{}`: {error}", text.escape_default()))
}
