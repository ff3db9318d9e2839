//! Compiles `proto/` with protox, so that no protoc is needed: messages always, service stubs with
//! the feature `grpc`.
#![forbid(unsafe_code)]

use std::{
    env,
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use protox::Compiler;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let sources = sources(Path::new("proto"))?;
    let (store, discovery): (Vec<_>, Vec<_>) =
        sources.iter().partition(|path| path.starts_with("proto/xds/store"));
    // Reflection needs no comments, the generated documentation does.
    for (files, output) in [(discovery, "descriptors.binpb"), (store, "store.binpb")] {
        let mut compiler = Compiler::new(["proto"])?;
        compiler.include_imports(true).open_files(files)?;
        fs::write(out.join(output), compiler.encode_file_descriptor_set())?;
    }
    let mut compiler = Compiler::new(["proto"])?;
    let files =
        compiler.include_imports(true).include_source_info(true).open_files(&sources)?.file_descriptor_set();

    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names().type_name_domain(["."], "type.googleapis.com");
    let grpc = env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(grpc)
        .build_server(grpc)
        // `connect` functions would pull in tonic's own transport; callers pass a channel instead.
        .build_transport(false)
        .btree_map(".")
        .bytes(".")
        .extern_path(".google.protobuf.Any", "crate::Any")
        .include_file("packages.rs")
        .compile_fds_with_config(files, config)?;
    Ok(())
}

/// All `.proto` files below `folder`, sorted, so that the output does not depend on the file
/// system.
fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
