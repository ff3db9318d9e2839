use bytes::Bytes;

/// A message of any type: `google.protobuf.Any`, whose value is a shared slice.
///
/// It is declared here because the `Any` of prost-types owns a `Vec<u8>`. Resources are sent in
/// this message, and all responses with the same payload must share its bytes. If it is decoded
/// from [`Bytes`], the value is a slice of the frame.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Any {
    /// `type.googleapis.com/` and the full name of the message; [`type_url`](crate::type_url) has
    /// the known ones.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

impl prost::Name for Any {
    const NAME: &'static str = "Any";
    const PACKAGE: &'static str = "google.protobuf";

    fn type_url() -> String {
        format!("type.googleapis.com/{}", Self::full_name())
    }
}
