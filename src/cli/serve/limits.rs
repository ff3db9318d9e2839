//! Options for the limits and timeouts of a server.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use xds::ServerConfig;

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits and waits")]
pub(in crate::cli) struct Limits {
    /// Streams of all clients at the same time; one more ends with RESOURCE_EXHAUSTED
    #[arg(long, value_name = "COUNT", default_value = "100000", value_parser = count)]
    streams_limit: usize,
    /// Connections at the same time. For one more, the connection that has been without a request
    /// for longest ends
    ///
    /// The limit is lower if the system allows fewer open files (`ulimit -Hn`, LimitNOFILE), less
    /// some for files and the admin page.
    #[arg(long, value_name = "COUNT", default_value = "100000", value_parser = count)]
    connections_limit: usize,
    /// Connections of one address at the same time (IPv6: of one /64 network); no limit if not
    /// given
    ///
    /// Behind a gateway or a load balancer all clients may have one address.
    #[arg(long, value_name = "COUNT", value_parser = count)]
    address_connections_limit: Option<usize>,
    /// Time for a peer to begin its TLS handshake, to complete it, and to begin with HTTP: for each
    /// of them
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = time)]
    handshake_timeout: Duration,
    /// Time until the first request of a stream, and for each request to arrive completely; then
    /// the stream ends with DEADLINE_EXCEEDED
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time)]
    request_timeout: Duration,
    /// Bytes of all requests that have not arrived completely; a request that needs more ends its
    /// stream
    #[arg(long, value_name = "BYTES", default_value = "1073741824", value_parser = count)]
    partial_requests_limit: usize,
    /// Ask a connection to leave (GOAWAY) after this time without a stream or request
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = time)]
    idle_timeout: Duration,
    /// Streams of one connection at the same time; HTTP/2 makes the client wait with more
    #[arg(long, value_name = "COUNT", default_value = "20000", value_parser = connection_streams)]
    connection_streams_limit: u32,
    /// Names of one type on one stream, wildcards included; more end the stream with
    /// RESOURCE_EXHAUSTED
    #[arg(long, value_name = "COUNT", default_value = "200000", value_parser = count)]
    names_limit: usize,
    /// Dynamic parameters of one name; more end the stream with RESOURCE_EXHAUSTED
    #[arg(long, value_name = "COUNT", default_value = "256", value_parser = count)]
    parameters_limit: usize,
    /// Types on one ADS stream; more end it with RESOURCE_EXHAUSTED
    #[arg(long, value_name = "COUNT", default_value = "64", value_parser = count)]
    types_limit: usize,
    /// Size of a request, in bytes; a larger one ends its stream
    ///
    /// A client that reconnects sends its names with their versions: 100,000 take about 6,000,000
    /// bytes.
    #[arg(long, value_name = "BYTES", default_value = "16777216", value_parser = count)]
    request_limit: usize,
    /// End each stream after this time, a tenth more or less, so that clients spread over new
    /// servers; never if not given
    ///
    /// The client reconnects at once and is sent only the changes.
    #[arg(long, value_name = "DURATION", value_parser = age)]
    stream_age: Option<Duration>,
    /// Ask each connection to leave after this time, a tenth more or less, and end its streams, so
    /// that clients spread over new servers behind a load balancer; never if not given
    #[arg(long, value_name = "DURATION", value_parser = age)]
    connection_age: Option<Duration>,
    /// Time for streams to end when the server stops
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    drain: Duration,
    /// Streams that the server ends per second when it stops, at most, within the time of --drain.
    /// Their clients reconnect, to another server or to this one
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count)]
    drain_rate: usize,
    /// How long a removed resource is still served if no ACK can show that it is out of use
    ///
    /// The time starts when the client was sent the change after which nothing names the resource,
    /// if that is known, else at the removal.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    removal_grace: Duration,
}

impl Limits {
    pub(in crate::cli) fn apply(&self, config: &mut ServerConfig) {
        config.streams_limit = self.streams_limit;
        config.connections_limit = self.connections_limit;
        config.address_connections_limit = self.address_connections_limit;
        config.handshake_timeout = self.handshake_timeout;
        config.request_timeout = self.request_timeout;
        config.partial_requests_limit_bytes = self.partial_requests_limit;
        config.idle_timeout = self.idle_timeout;
        config.connection_streams_limit = self.connection_streams_limit;
        config.request_limit_bytes = self.request_limit;
        config.stream_age = self.stream_age;
        config.connection_age = self.connection_age;
        (config.drain, config.drain_rate) = (self.drain, self.drain_rate);
        config.stream.names_limit = self.names_limit;
        config.stream.parameters_limit = self.parameters_limit;
        config.stream.types_limit = self.types_limit;
        config.stream.removal_grace = self.removal_grace;
    }
}

pub(in crate::cli) fn count(text: &str) -> Result<usize, &'static str> {
    // Larger values are no real limit, and too large for a semaphore.
    let count = text.parse::<u32>().ok().filter(|count| *count > 0);
    count
        .and_then(|count| count.try_into().ok())
        .ok_or("write a whole number from 1 to 4294967295, such as 10000")
}

fn connection_streams(text: &str) -> Result<u32, &'static str> {
    // HTTP/2 has 32 bits for this, and so has `count`.
    count(text).map(|count| u32::try_from(count).expect("a count is at most 4294967295"))
}

pub(in crate::cli) fn wait(text: &str) -> Result<Duration, &'static str> {
    duration(text)
        .ok_or("write a whole number and its unit, ms, s, m or h, such as 500ms, 10s or 30m; at most 87600h")
}

fn age(text: &str) -> Result<Duration, &'static str> {
    let age = wait(text)?;
    if age.is_zero() {
        Err("with 0, streams would end at once; leave the option out for no limit")
    } else {
        Ok(age)
    }
}

pub(in crate::cli) fn seconds(text: &str) -> Result<u32, &'static str> {
    let number = text.strip_suffix('s').unwrap_or(text);
    number.parse().map_err(|_| "write a whole number of seconds, such as 5")
}

pub(in crate::cli) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an IP address and a port, such as 127.0.0.1:18000 or [::]:18000")
}

pub(in crate::cli) fn time(text: &str) -> Result<Duration, &'static str> {
    let time = wait(text)?;
    if time.is_zero() { Err("a time of 0 is too short; write a longer one") } else { Ok(time) }
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => number,
        "s" => number.checked_mul(1000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        _ => return None,
    };
    // Deadlines are sums of times, which must not overflow.
    Some(Duration::from_millis(millis)).filter(|duration| *duration <= DURATION_LIMIT)
}

/// Ten years.
const DURATION_LIMIT: Duration = Duration::from_secs(87_600 * 3600);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        limits: Limits,
    }

    fn parse(arguments: &[&str]) -> Result<ServerConfig, clap::Error> {
        let line = Line::try_parse_from(["xds"].iter().chain(arguments))?;
        let mut config = ServerConfig::default();
        line.limits.apply(&mut config);
        Ok(config)
    }

    #[test]
    fn without_options_the_limits_are_those_of_the_library() {
        assert_eq!(format!("{:?}", parse(&[]).unwrap()), format!("{:?}", ServerConfig::default()));
    }

    #[test]
    fn each_option_sets_its_own_limit() {
        let arguments = "--streams-limit 1 --names-limit 2 --parameters-limit 3 --types-limit 4 --request-limit 5 \
                         --stream-age 1h --removal-grace 500ms --connection-age 2h --drain 7s --drain-rate 8 \
                         --connection-streams-limit 10 \
                         --connections-limit 11 --address-connections-limit 12 --handshake-timeout 13s \
                         --request-timeout 14s --idle-timeout 15s --partial-requests-limit 16";
        let config = parse(&arguments.split_whitespace().collect::<Vec<_>>()).unwrap();
        let stream = &config.stream;
        assert_eq!((config.streams_limit, stream.names_limit, stream.parameters_limit), (1, 2, 3));
        assert_eq!((stream.types_limit, config.request_limit_bytes), (4, 5));
        assert_eq!((config.connection_streams_limit, config.connections_limit), (10, 11));
        assert_eq!(config.address_connections_limit, Some(12));
        assert_eq!(config.partial_requests_limit_bytes, 16);
        let times = [config.handshake_timeout, config.request_timeout, config.idle_timeout];
        assert_eq!(times, [13, 14, 15].map(Duration::from_secs));
        assert_eq!(config.stream_age, Some(Duration::from_secs(3600)));
        assert_eq!(stream.removal_grace, Duration::from_millis(500));
        assert_eq!(config.connection_age, Some(Duration::from_secs(7200)));
        assert_eq!((config.drain, config.drain_rate), (Duration::from_secs(7), 8));
    }

    #[test]
    fn a_bad_value_is_told_what_to_write() {
        let error = |arguments: &[&str]| parse(arguments).unwrap_err().to_string();
        for bad in ["0", "-1", "many", "1.5", "4294967296", ""] {
            let error = error(&[&format!("--names-limit={bad}")]);
            assert!(
                error.contains("--names-limit <COUNT>") && error.contains("a whole number from 1"),
                "{error}"
            );
        }
        for bad in ["10", "s", "1d", "1.5s", "-1s", "1h30m", "87601h", "99999999999999999999h", ""] {
            let error = error(&[&format!("--removal-grace={bad}")]);
            assert!(
                error.contains("--removal-grace <DURATION>") && error.contains("such as 500ms"),
                "{error}"
            );
        }
        assert!(error(&["--stream-age", "0s"]).contains("leave the option out"));
        assert!(error(&["--idle-timeout", "0s"]).contains("a longer one"));
    }
}
