// An xDS server of go-control-plane, for tests/interop/foreign.rs.
//
//	server snapshot   one SnapshotCache, as its examples have it
//	server ads        the same in its ADS mode, which answers requests by name once they name all there is
//	server linear     a LinearCache per type behind a MuxCache; it counts versions by itself
//
// It listens on a port of its own, prints `{"port":N}`, and ends with stdin. Each line on stdin is a command that is
// answered by a line, `{"ok":true}` or `{"error":"..."}`:
//
//	{"version":"1","resources":{"<type URL>":[<resource as proto JSON>, ...]}}   all there is now, for every node
//	{"lacks":["<type URL>", ...]}   ends each aggregated stream that subscribes to one of these types from now on
//	{"stop":true}     closes the port and all streams
//	{"start":true}    listens again, on the same port
//
// What happens in between is said by lines too:
//
//	{"event":"stream_open","stream":"sotw 1","type":"<empty for ADS>"}, {"event":"stream_closed","stream":"sotw 1"}
//	{"event":"ack","stream":"sotw 1","type":"..","version":"..","nonce":".."}   in delta, the version of the response
//	{"event":"nack","stream":"sotw 1","type":"..","nonce":"..","detail":".."}
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
)

func main() {
	if len(os.Args) != 2 {
		fatal(errors.New("usage: server snapshot|ads|linear"))
	}
	events := newEvents(os.Stdout)
	xds, publish, err := newCache(os.Args[1])
	if err != nil {
		fatal(err)
	}
	port := port{service: server.NewServer(context.Background(), xds, events)}
	if err := port.start(); err != nil {
		fatal(err)
	}
	events.say(line{"port": port.address.(*net.TCPAddr).Port})

	// A resource may be longer than what a Scanner takes.
	for input := bufio.NewReader(os.Stdin); ; {
		text, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		if err := perform(text, &port, events, publish); err != nil {
			events.say(line{"error": err.Error()})
		} else {
			events.say(line{"ok": true})
		}
	}
}

type command struct {
	Version   string
	Resources map[string][]json.RawMessage
	Lacks     *[]string
	Stop      bool
	Start     bool
}

func perform(text []byte, port *port, events *events, publish publish) error {
	var command command
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&command); err != nil {
		return err
	}
	switch {
	case command.Lacks != nil:
		events.lack(*command.Lacks)
		return nil
	case command.Stop:
		return port.stop()
	case command.Start:
		return port.start()
	case command.Version == "":
		return errors.New("a command has a version, lacks, stop or start")
	}
	resources, err := parse(command.Resources)
	if err != nil {
		return err
	}
	return publish(command.Version, resources)
}

// parse reads resources; every type of the server is in what it returns.
func parse(texts map[string][]json.RawMessage) (map[string][]types.Resource, error) {
	resources := map[string][]types.Resource{}
	for _, url := range served() {
		resources[url] = nil
	}
	for url, texts := range texts {
		if _, known := resources[url]; !known {
			return nil, fmt.Errorf("not served: %s", url)
		}
		kind, err := protoregistry.GlobalTypes.FindMessageByURL(url)
		if err != nil {
			return nil, err
		}
		for _, text := range texts {
			resource := kind.New().Interface()
			if err := protojson.Unmarshal(text, resource); err != nil {
				return nil, fmt.Errorf("%s: %w", url, err)
			}
			resources[url] = append(resources[url], resource)
		}
	}
	return resources, nil
}

// served lists the type URLs of go-control-plane.
func served() []string {
	var urls []string
	for kind := range types.UnknownType {
		if url, err := cache.GetResponseTypeURL(kind); err == nil {
			urls = append(urls, url)
		}
	}
	return urls
}

// publish makes all clients get these resources and no others.
type publish func(version string, resources map[string][]types.Resource) error

func newCache(kind string) (cache.Cache, publish, error) {
	switch kind {
	case "snapshot", "ads":
		snapshots := cache.NewSnapshotCache(kind == "ads", everyone{}, logger)
		return snapshots, func(version string, resources map[string][]types.Resource) error {
			snapshot, err := cache.NewSnapshot(version, resources)
			if err != nil {
				return err
			}
			return snapshots.SetSnapshot(context.Background(), everyone{}.ID(nil), snapshot)
		}, nil
	case "linear":
		mux := &cache.MuxCache{
			Classify:      func(request *cache.Request) string { return request.GetTypeUrl() },
			ClassifyDelta: func(request *cache.DeltaRequest) string { return request.GetTypeUrl() },
			Caches:        map[string]cache.Cache{},
		}
		linear := map[string]*cache.LinearCache{}
		for _, url := range served() {
			linear[url] = cache.NewLinearCache(url, cache.WithLogger(logger))
			mux.Caches[url] = linear[url]
		}
		return mux, func(_ string, resources map[string][]types.Resource) error {
			for url, resources := range resources {
				if err := replace(linear[url], resources); err != nil {
					return err
				}
			}
			return nil
		}, nil
	default:
		return nil, nil, fmt.Errorf("unknown cache: %s", kind)
	}
}

// replace tells a cache what differs: its own SetResources takes everything for changed.
func replace(linear *cache.LinearCache, resources []types.Resource) error {
	old, changed, removed := linear.GetResources(), map[string]types.Resource{}, []string{}
	names := map[string]bool{}
	for _, resource := range resources {
		name := cache.GetResourceName(resource)
		names[name] = true
		if !proto.Equal(old[name], resource) {
			changed[name] = resource
		}
	}
	for name := range old {
		if !names[name] {
			removed = append(removed, name)
		}
	}
	if len(changed) == 0 && len(removed) == 0 {
		return nil
	}
	return linear.UpdateResources(changed, removed)
}

// everyone is the one node that all clients are.
type everyone struct{}

func (everyone) ID(*core.Node) string { return "everyone" }

// port is where the server listens, while it does.
type port struct {
	service server.Server
	address net.Addr
	grpc    *grpc.Server
}

func (p *port) start() error {
	if p.grpc != nil {
		return errors.New("it listens already")
	}
	address := "127.0.0.1:0"
	if p.address != nil {
		address = p.address.String()
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	p.address = listener.Addr()
	// All streams are closed, and said to be, once a stop is answered.
	p.grpc = grpc.NewServer(grpc.WaitForHandlers(true))
	discovery.RegisterAggregatedDiscoveryServiceServer(p.grpc, p.service)
	clusterservice.RegisterClusterDiscoveryServiceServer(p.grpc, p.service)
	endpointservice.RegisterEndpointDiscoveryServiceServer(p.grpc, p.service)
	extensionservice.RegisterExtensionConfigDiscoveryServiceServer(p.grpc, p.service)
	listenerservice.RegisterListenerDiscoveryServiceServer(p.grpc, p.service)
	routeservice.RegisterRouteDiscoveryServiceServer(p.grpc, p.service)
	routeservice.RegisterScopedRoutesDiscoveryServiceServer(p.grpc, p.service)
	routeservice.RegisterVirtualHostDiscoveryServiceServer(p.grpc, p.service)
	runtimeservice.RegisterRuntimeDiscoveryServiceServer(p.grpc, p.service)
	secretservice.RegisterSecretDiscoveryServiceServer(p.grpc, p.service)
	go func(server *grpc.Server) {
		if err := server.Serve(listener); err != nil {
			fatal(err)
		}
	}(p.grpc)
	return nil
}

func (p *port) stop() error {
	if p.grpc == nil {
		return errors.New("it does not listen")
	}
	p.grpc.Stop()
	p.grpc = nil
	return nil
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

var logger = log.LoggerFuncs{
	WarnFunc:  func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	ErrorFunc: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
}
