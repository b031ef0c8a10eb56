// Calls every method of the public Go client of Azure CNS and checks what comes back.
//
//	interop POOL DIRECT
//
// POOL is the URL of a daemon in Standalone mode with one IPv4 network and nothing assigned, DIRECT that of one in channel mode
// Direct that knows nothing yet. Ends with 1 if anything was not as a client expects it.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-container-networking/cns"
	"github.com/Azure/azure-container-networking/cns/client"
	"github.com/Azure/azure-container-networking/cns/restserver"
	"github.com/Azure/azure-container-networking/cns/types"
)

const (
	container = "1f2e3d4c5b6a79880011223344556677889900aabbccddeeff00112233445566"
	ifaceID   = "1f2e3d4c-eth0"
	ncID      = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11"
)

var (
	pod    = []byte(`{"PodName":"web-0","PodNamespace":"default"}`)
	failed bool
)

// check reports a method's outcome.
func check(method string, ok bool, got ...any) {
	if ok {
		fmt.Println("ok", method)
		return
	}
	failed = true
	fmt.Println("FAILED", method, fmt.Sprintf("%+v", got))
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: interop POOL DIRECT")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool(ctx, connect(os.Args[1]))
	direct(ctx, connect(os.Args[2]))
	if failed {
		os.Exit(1)
	}
}

func connect(url string) *client.Client {
	c, err := client.New(url, 15*time.Second)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return c
}

// pool: a node whose pods get addresses from a pool.
func pool(ctx context.Context, c *client.Client) {
	many := cns.IPConfigsRequest{PodInterfaceID: ifaceID, InfraContainerID: container, OrchestratorContext: pod, Ifname: "eth0"}
	got, err := c.RequestIPs(ctx, many)
	ok := err == nil && len(got.PodIPInfo) == 1 && got.PodIPInfo[0].PodIPConfig.IPAddress == "10.244.0.2" &&
		got.PodIPInfo[0].NICType == cns.InfraNIC
	check("RequestIPs", ok, got, err)
	again, err := c.RequestIPs(ctx, many)
	check("RequestIPs, again", err == nil && again.PodIPInfo[0].PodIPConfig == got.PodIPInfo[0].PodIPConfig, again, err)

	assigned, err := c.GetIPAddressesMatchingStates(ctx, types.Assigned)
	ok = err == nil && len(assigned) == 1 && assigned[0].IPAddress == "10.244.0.2" && assigned[0].PodInfo.Name() == "web-0"
	check("GetIPAddressesMatchingStates", ok, assigned, err)
	contexts, err := c.GetPodOrchestratorContext(ctx)
	check("GetPodOrchestratorContext", err == nil && len(contexts[container]) == 1, contexts, err)
	// The client's own type cannot take a pod's interface back; what it can take is looked at.
	data, err := c.GetHTTPServiceData(ctx)
	check("GetHTTPServiceData", err == nil && len(data.HTTPRestServiceData.PodIPConfigState) > 1, data, err)

	endpoint, err := c.GetEndpoint(ctx, container)
	ok = err == nil && endpoint.EndpointInfo.PodName == "web-0" && len(endpoint.EndpointInfo.IfnameToIPMap["eth0"].IPv4) == 1
	check("GetEndpoint", ok, endpoint, err)
	updated, err := c.UpdateEndpoint(ctx, container, map[string]*restserver.IPInfo{
		"eth0": {HostVethName: "azv1f2e3d4c", NICType: cns.InfraNIC, MacAddress: "aa:bb:cc:00:11:22"},
	})
	check("UpdateEndpoint", err == nil && updated.ReturnCode == types.Success, updated, err)
	endpoint, err = c.GetEndpoint(ctx, container)
	ok = err == nil && endpoint.EndpointInfo.IfnameToIPMap["eth0"].HostVethName == "azv1f2e3d4c" &&
		len(endpoint.EndpointInfo.IfnameToIPMap["eth0"].IPv4) == 1
	check("GetEndpoint, updated", ok, endpoint, err)
	missing, err := c.GetEndpoint(ctx, "unknown0")
	check("GetEndpoint, unknown", err != nil && missing.Response.ReturnCode == types.NotFound, missing, err)

	check("ReleaseIPs", c.ReleaseIPs(ctx, many) == nil)
	check("ReleaseIPs, again", c.ReleaseIPs(ctx, many) == nil)
	one := cns.IPConfigRequest{PodInterfaceID: ifaceID, InfraContainerID: container, OrchestratorContext: pod}
	single, err := c.RequestIPAddress(ctx, one)
	check("RequestIPAddress", err == nil && strings.HasPrefix(single.PodIpInfo.PodIPConfig.IPAddress, "10.244.0."), single, err)
	check("ReleaseIPAddress", c.ReleaseIPAddress(ctx, one) == nil)
	assigned, err = c.GetIPAddressesMatchingStates(ctx, types.Assigned)
	check("GetIPAddressesMatchingStates, none", err == nil && len(assigned) == 0, assigned, err)

	cores, err := c.NumOfCPUCores(ctx)
	check("NumOfCPUCores", err == nil && cores.NumOfCPUCores > 0, cores, err)
	az, err := c.GetHomeAz(ctx)
	check("GetHomeAz, not known", err != nil && strings.Contains(err.Error(), "HomeAz Cache is unavailable"), az, err)
	all, err := c.GetAllNCsFromCns(ctx)
	check("GetAllNCsFromCns", err == nil && len(all.NetworkContainers) == 1, all, err)
	apis, err := c.NMAgentSupportedAPIs(ctx)
	check("NMAgentSupportedAPIs", err == nil && apis.SupportedApis == nil, apis, err)
}

// direct: a node whose pods get network containers from DNC.
func direct(ctx context.Context, c *client.Client) {
	_, err := c.GetNetworkContainer(ctx, pod)
	check("GetNetworkContainer, no orchestrator", err != nil, err)
	orchestrator := cns.SetOrchestratorTypeRequest{OrchestratorType: cns.Kubernetes, DncPartitionKey: "pk1", NodeID: "node-1"}
	check("SetOrchestratorType", c.SetOrchestratorType(ctx, orchestrator) == nil)

	nc := cns.CreateNetworkContainerRequest{
		Version: "1", NetworkContainerType: cns.AzureContainerInstance, NetworkContainerid: cns.SwiftPrefix + ncID,
		PrimaryInterfaceIdentifier: "10.0.0.4", OrchestratorContext: pod, AllowNCToHostCommunication: true,
		IPConfiguration: cns.IPConfiguration{
			IPSubnet: cns.IPSubnet{IPAddress: "10.7.0.9", PrefixLength: 24}, GatewayIPAddress: "10.7.0.1",
			DNSServers: []string{"168.63.129.16"},
		},
	}
	check("CreateNetworkContainer", c.CreateNetworkContainer(ctx, nc) == nil)
	got, err := c.GetNetworkContainer(ctx, pod)
	ok := err == nil && got.NetworkContainerID == cns.SwiftPrefix+ncID && got.IPConfiguration.IPSubnet.IPAddress == "10.7.0.9" &&
		got.IPConfiguration.DNSServers[0] == "168.63.129.16" && got.AllowNCToHostCommunication
	check("GetNetworkContainer", ok, got, err)
	of, err := c.GetAllNetworkContainers(ctx, pod)
	check("GetAllNetworkContainers", err == nil && len(of) == 1, of, err)
	_, err = c.GetNetworkContainer(ctx, []byte(`{"PodName":"unknown","PodNamespace":"default"}`))
	check("GetNetworkContainer, unknown", client.IsNotFound(err), err)

	nc.Version = "2"
	err = c.PostAllNetworkContainers(ctx, cns.PostNetworkContainersRequest{CreateNetworkContainerRequests: []cns.CreateNetworkContainerRequest{nc}})
	check("PostAllNetworkContainers", err == nil, err)
	_, err = c.CreateHostNCApipaEndpoint(ctx, cns.SwiftPrefix+ncID)
	check("CreateHostNCApipaEndpoint", err == nil, err)
	check("DeleteHostNCApipaEndpoint", c.DeleteHostNCApipaEndpoint(ctx, cns.SwiftPrefix+ncID) == nil)

	// No host agent is there: a client must hear that it failed, and how.
	url := "http://168.63.129.16/machine/plugins/?comp=nmagent&type=NetworkManagement/interfaces/10.0.0.4/networkContainers/" +
		ncID + "/authenticationToken/tok/api-version/1"
	err = c.PublishNetworkContainer(ctx, cns.PublishNetworkContainerRequest{
		NetworkID: "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21", NetworkContainerID: ncID, CreateNetworkContainerURL: url,
		CreateNetworkContainerRequestBody: []byte(`{"version":"0"}`),
	})
	check("PublishNetworkContainer", err != nil && strings.Contains(err.Error(), "failed to join network"), err)
	err = c.UnpublishNC(ctx, cns.UnpublishNetworkContainerRequest{
		NetworkID: "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21", NetworkContainerID: ncID, DeleteNetworkContainerURL: url + "/method/DELETE",
		DeleteNetworkContainerRequestBody: []byte("\"\"\n"),
	})
	check("UnpublishNC", err != nil && strings.Contains(err.Error(), "failed to join network"), err)

	check("DeleteNetworkContainer", c.DeleteNetworkContainer(ctx, cns.SwiftPrefix+ncID) == nil)
	check("DeleteNetworkContainer, again", c.DeleteNetworkContainer(ctx, cns.SwiftPrefix+ncID) == nil)
}
