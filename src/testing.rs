//! For tests of control planes: a client of the machine alone, and a server for real clients, both in
//! memory.

#[cfg(feature = "client")]
pub use server::TestServer;
pub use xds_core::testing::TestClient;

#[cfg(feature = "client")]
mod server;
