//! The caching proxy: many clients in front of few subscriptions upstream, every variant shared by those it is for.

pub mod health;
