import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.TypeRegistry;
import com.google.protobuf.util.JsonFormat;
import io.envoyproxy.controlplane.cache.v3.SimpleCache;
import io.envoyproxy.controlplane.cache.v3.Snapshot;
import io.envoyproxy.controlplane.server.V3DiscoveryServer;
import io.envoyproxy.envoy.config.cluster.v3.Cluster;
import io.envoyproxy.envoy.config.endpoint.v3.ClusterLoadAssignment;
import io.envoyproxy.envoy.config.listener.v3.Listener;
import io.envoyproxy.envoy.config.route.v3.RouteConfiguration;
import io.envoyproxy.envoy.extensions.transport_sockets.tls.v3.Secret;
import io.grpc.netty.NettyServerBuilder;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * An xDS server of java-control-plane, for tests/interop/foreign.rs. What it reads and prints is told in
 * ../go-server/main.go; the names of its streams are numbers.
 */
final class Server {
  private static final String EVERYONE = "everyone";
  private static final String PREFIX = "type.googleapis.com/";

  private final SimpleCache<String> cache = new SimpleCache<>(node -> EVERYONE);
  private final Events events = new Events(System.out);
  private final V3DiscoveryServer service = new V3DiscoveryServer(events, cache);
  /** What connections belong to, which may be in use for a while after they are closed. */
  private final EventLoopGroup connections = new NioEventLoopGroup(1);
  /** The port it was first given; 0 before. */
  private int port = 0;
  /** Null while it does not listen. */
  private io.grpc.Server grpc;
  /** What its listening socket belongs to. */
  private EventLoopGroup acceptor;

  public static void main(String[] arguments) throws Exception {
    System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
    Server server = new Server();
    server.start();
    server.events.say(Map.of("port", server.port));
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      try {
        server.perform(JsonParser.parseString(line).getAsJsonObject());
        server.events.say(Map.of("ok", true));
      } catch (Exception error) {
        server.events.say(Map.of("error", error.toString()));
      }
    }
    // Threads of Netty may go on.
    System.exit(0);
  }

  private void perform(JsonObject command) throws Exception {
    if (command.has("stop")) {
      stop();
    } else if (command.has("start")) {
      start();
    } else if (command.has("version") && command.has("resources")) {
      cache.setSnapshot(EVERYONE, snapshot(command.get("version").getAsString(), command.getAsJsonObject("resources")));
    } else {
      throw new IllegalArgumentException("a command has a version and resources, stop or start");
    }
  }

  private void start() throws IOException {
    if (grpc != null) {
      throw new IllegalStateException("it listens already");
    }
    acceptor = new NioEventLoopGroup(1);
    grpc = NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), port))
        .channelType(NioServerSocketChannel.class)
        .bossEventLoopGroup(acceptor)
        .workerEventLoopGroup(connections)
        .intercept(events)
        .addService(service.getAggregatedDiscoveryServiceImpl())
        .addService(service.getClusterDiscoveryServiceImpl())
        .addService(service.getEndpointDiscoveryServiceImpl())
        .addService(service.getListenerDiscoveryServiceImpl())
        .addService(service.getRouteDiscoveryServiceImpl())
        .addService(service.getSecretDiscoveryServiceImpl())
        .build()
        .start();
    port = grpc.getPort();
  }

  private void stop() throws InterruptedException {
    if (grpc == null) {
      throw new IllegalStateException("it does not listen");
    }
    if (!grpc.shutdownNow().awaitTermination(10, TimeUnit.SECONDS)) {
      throw new IllegalStateException("its streams do not close");
    }
    // The port is free only when the selector has let go of its socket, which may be after the server has ended.
    acceptor.shutdownGracefully(0, 10, TimeUnit.SECONDS).sync();
    events.awaitStreamsClosed();
    grpc = null;
  }

  private static Snapshot snapshot(String version, JsonObject resources) throws InvalidProtocolBufferException {
    Set<String> served = Set.of(
        url(Cluster.getDescriptor()), url(ClusterLoadAssignment.getDescriptor()), url(Listener.getDescriptor()),
        url(RouteConfiguration.getDescriptor()), url(Secret.getDescriptor()));
    for (String url : resources.keySet()) {
      if (!served.contains(url)) {
        throw new IllegalArgumentException("not served: " + url);
      }
    }
    return Snapshot.create(
        parse(resources, Cluster.getDefaultInstance()),
        parse(resources, ClusterLoadAssignment.getDefaultInstance()),
        parse(resources, Listener.getDefaultInstance()),
        parse(resources, RouteConfiguration.getDefaultInstance()),
        parse(resources, Secret.getDefaultInstance()),
        version);
  }

  private static <T extends Message> List<T> parse(JsonObject resources, T kind) throws InvalidProtocolBufferException {
    List<T> parsed = new ArrayList<>();
    JsonElement texts = resources.get(url(kind.getDescriptorForType()));
    if (texts != null) {
      for (JsonElement text : texts.getAsJsonArray()) {
        TypeRegistry.Builder types = TypeRegistry.newBuilder();
        addTypes(text, types);
        Message.Builder builder = kind.newBuilderForType();
        JsonFormat.parser().usingTypeRegistry(types.build()).merge(text.toString(), builder);
        // The builder is that of `kind`.
        @SuppressWarnings("unchecked")
        T resource = (T) builder.build();
        parsed.add(resource);
      }
    }
    return parsed;
  }

  private static String url(Descriptor type) {
    return PREFIX + type.getFullName();
  }

  /** Adds the types of every Any in the text: their classes are found by name. */
  private static void addTypes(JsonElement text, TypeRegistry.Builder types) {
    if (text.isJsonArray()) {
      text.getAsJsonArray().forEach(element -> addTypes(element, types));
    } else if (text.isJsonObject()) {
      JsonObject object = text.getAsJsonObject();
      if (object.has("@type")) {
        types.add(descriptor(object.get("@type").getAsString()));
      }
      object.entrySet().forEach(field -> addTypes(field.getValue(), types));
    }
  }

  private static Descriptor descriptor(String url) {
    String name = url.substring(url.lastIndexOf('/') + 1);
    String java = name.startsWith("google.") ? "com." + name
        : name.startsWith("envoy.") ? "io.envoyproxy." + name
        : "com.github." + name;
    try {
      return (Descriptor) Class.forName(java).getMethod("getDescriptor").invoke(null);
    } catch (ReflectiveOperationException error) {
      throw new IllegalArgumentException("unknown type: " + url, error);
    }
  }
}
