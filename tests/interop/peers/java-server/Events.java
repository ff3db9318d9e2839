import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import io.envoyproxy.controlplane.server.DiscoveryServerCallbacks;
import io.envoyproxy.envoy.service.discovery.v3.DeltaDiscoveryRequest;
import io.envoyproxy.envoy.service.discovery.v3.DeltaDiscoveryResponse;
import io.envoyproxy.envoy.service.discovery.v3.DiscoveryRequest;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.ForwardingServerCallListener.SimpleForwardingServerCallListener;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import java.io.PrintStream;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;

/** Prints what the server calls back about, and the ends of streams, which it tells of only when they end well. */
final class Events implements DiscoveryServerCallbacks, ServerInterceptor {
  private record Response(String stream, String nonce) {}

  /** Where a call keeps the name of its stream. */
  private static final Context.Key<AtomicReference<String>> STREAM = Context.key("stream");
  private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

  private final PrintStream output;
  /** The type of each stream, which requests on it may leave out; it is empty for ADS. */
  private final Map<String, String> urls = new ConcurrentHashMap<>();
  /** The version of each delta response without an answer: an ACK does not name it. */
  private final Map<Response, String> versions = new ConcurrentHashMap<>();

  Events(PrintStream output) {
    this.output = output;
  }

  synchronized void say(Map<String, Object> line) {
    output.println(GSON.toJson(line));
    output.flush();
  }

  @Override
  public <Q, A> ServerCall.Listener<Q> interceptCall(
      ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
    AtomicReference<String> stream = new AtomicReference<>();
    Context context = Context.current().withValue(STREAM, stream);
    return new SimpleForwardingServerCallListener<>(Contexts.interceptCall(context, call, headers, next)) {
      @Override
      public void onCancel() {
        try {
          super.onCancel();
        } finally {
          closed(stream.get());
        }
      }

      @Override
      public void onComplete() {
        try {
          super.onComplete();
        } finally {
          closed(stream.get());
        }
      }
    };
  }

  @Override
  public void onStreamOpen(long id, String url) {
    String stream = Long.toString(id);
    STREAM.get().set(stream);
    urls.put(stream, url);
    say(Map.of("event", "stream_open", "stream", stream, "type", url));
  }

  private synchronized void closed(String stream) {
    // A call that is no stream has none.
    if (stream != null) {
      urls.remove(stream);
      say(Map.of("event", "stream_closed", "stream", stream));
      notifyAll();
    }
  }

  /** Waits until all streams are said to be closed, some time after they are. */
  synchronized void awaitStreamsClosed() throws InterruptedException {
    while (!urls.isEmpty()) {
      wait();
    }
  }

  @Override
  public void onV3StreamRequest(long id, DiscoveryRequest request) {
    String stream = Long.toString(id);
    String nonce = request.getResponseNonce();
    if (nonce.isEmpty()) {
      return;
    }
    if (request.hasErrorDetail()) {
      nack(stream, request.getTypeUrl(), nonce, request.getErrorDetail().getMessage());
    } else {
      ack(stream, request.getTypeUrl(), nonce, request.getVersionInfo());
    }
  }

  @Override
  public void onV3StreamDeltaRequest(long id, DeltaDiscoveryRequest request) {
    String stream = Long.toString(id);
    String nonce = request.getResponseNonce();
    if (nonce.isEmpty()) {
      return;
    }
    String version = versions.remove(new Response(stream, nonce));
    if (request.hasErrorDetail()) {
      nack(stream, request.getTypeUrl(), nonce, request.getErrorDetail().getMessage());
    } else {
      ack(stream, request.getTypeUrl(), nonce, version == null ? "" : version);
    }
  }

  @Override
  public void onV3StreamDeltaResponse(long id, DeltaDiscoveryRequest request, DeltaDiscoveryResponse response) {
    versions.put(new Response(Long.toString(id), response.getNonce()), response.getSystemVersionInfo());
  }

  private void ack(String stream, String url, String nonce, String version) {
    say(Map.of("event", "ack", "stream", stream, "type", url(stream, url), "version", version, "nonce", nonce));
  }

  private void nack(String stream, String url, String nonce, String detail) {
    say(Map.of("event", "nack", "stream", stream, "type", url(stream, url), "nonce", nonce, "detail", detail));
  }

  private String url(String stream, String url) {
    return url.isEmpty() ? urls.getOrDefault(stream, "") : url;
  }
}
