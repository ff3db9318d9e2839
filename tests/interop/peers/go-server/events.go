package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// events prints what the server calls back about, a line each.
type events struct {
	mutex  sync.Mutex
	output *json.Encoder
	// urls has the type of each stream, which requests on it may leave out; it is empty for ADS.
	urls map[string]string
	// versions has that of each delta response without an answer: an ACK does not name it.
	versions map[response]string
	// lacks has the types that the server does not serve on aggregated streams.
	lacks []string
}

type response struct{ stream, nonce string }

type line map[string]any

func newEvents(output io.Writer) *events {
	encoder := json.NewEncoder(output)
	encoder.SetEscapeHTML(false)
	return &events{output: encoder, urls: map[string]string{}, versions: map[response]string{}}
}

func (e *events) say(line line) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.print(line)
}

func (e *events) print(line line) {
	if err := e.output.Encode(line); err != nil {
		fatal(err)
	}
}

func (e *events) lack(urls []string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.lacks = urls
}

// check refuses a type that the server lacks, as a server that does not know it.
func (e *events) check(stream, url string) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.urls[stream] == "" && slices.Contains(e.lacks, url) {
		return status.Errorf(codes.Unimplemented, "unknown type %s", url)
	}
	return nil
}

func (e *events) OnStreamOpen(_ context.Context, id int64, url string) error {
	return e.opened(sotw(id), url)
}

func (e *events) OnDeltaStreamOpen(_ context.Context, id int64, url string) error {
	return e.opened(delta(id), url)
}

func (e *events) OnStreamClosed(id int64, _ *core.Node) { e.closed(sotw(id)) }

func (e *events) OnDeltaStreamClosed(id int64, _ *core.Node) { e.closed(delta(id)) }

func (e *events) OnStreamRequest(id int64, request *discovery.DiscoveryRequest) error {
	nonce := request.GetResponseNonce()
	if nonce == "" {
		return e.check(sotw(id), request.GetTypeUrl())
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if detail := request.GetErrorDetail(); detail != nil {
		e.nack(sotw(id), request.GetTypeUrl(), nonce, detail.GetMessage())
	} else {
		e.ack(sotw(id), request.GetTypeUrl(), nonce, request.GetVersionInfo())
	}
	return nil
}

func (e *events) OnStreamDeltaRequest(id int64, request *discovery.DeltaDiscoveryRequest) error {
	nonce := request.GetResponseNonce()
	if nonce == "" {
		return e.check(delta(id), request.GetTypeUrl())
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	answered := response{delta(id), nonce}
	if detail := request.GetErrorDetail(); detail != nil {
		e.nack(delta(id), request.GetTypeUrl(), nonce, detail.GetMessage())
	} else {
		e.ack(delta(id), request.GetTypeUrl(), nonce, e.versions[answered])
	}
	delete(e.versions, answered)
	return nil
}

func (e *events) OnStreamDeltaResponse(id int64, _ *discovery.DeltaDiscoveryRequest, sent *discovery.DeltaDiscoveryResponse) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.versions[response{delta(id), sent.GetNonce()}] = sent.GetSystemVersionInfo()
}

func (e *events) OnStreamResponse(context.Context, int64, *discovery.DiscoveryRequest, *discovery.DiscoveryResponse) {
}

func (e *events) OnFetchRequest(context.Context, *discovery.DiscoveryRequest) error {
	return nil
}

func (e *events) OnFetchResponse(*discovery.DiscoveryRequest, *discovery.DiscoveryResponse) {}

func (e *events) opened(stream, url string) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.urls[stream] = url
	e.print(line{"event": "stream_open", "stream": stream, "type": url})
	return nil
}

func (e *events) closed(stream string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	delete(e.urls, stream)
	e.print(line{"event": "stream_closed", "stream": stream})
}

func (e *events) ack(stream, url, nonce, version string) {
	e.print(line{"event": "ack", "stream": stream, "type": e.url(stream, url), "version": version, "nonce": nonce})
}

func (e *events) nack(stream, url, nonce, detail string) {
	e.print(line{"event": "nack", "stream": stream, "type": e.url(stream, url), "nonce": nonce, "detail": detail})
}

func (e *events) url(stream, url string) string {
	if url == "" {
		return e.urls[stream]
	}
	return url
}

// The server counts the streams of each kind for itself.
func sotw(id int64) string  { return fmt.Sprintf("sotw %d", id) }
func delta(id int64) string { return fmt.Sprintf("delta %d", id) }
