//! How each type stands with each upstream, generation by generation.
