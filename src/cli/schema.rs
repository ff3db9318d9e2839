//! `xds schema`: JSON Schemas of the files that xds reads, for editors.

use clap::{Args, CommandFactory as _, ValueEnum};
use xds::folder::schema;

use super::{Cli, DescriptorOptions, Failure, config, policy, say};

/// Print a JSON Schema (draft 2020-12) of the files that xds reads, for editors
///
/// An editor with a YAML language server then completes the names of fields, types and enumeration
/// values, and underlines what `xds check` would refuse for its form. It does not check the rules of
/// values, nor what depends on other documents: only `xds check` does. See docs/folder.md.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Schema {
    /// The files to describe
    #[arg(value_enum, value_name = "FILES", default_value_t = SchemaKind::Resources)]
    files: SchemaKind,
    #[command(flatten)]
    descriptors: DescriptorOptions,
}

/// The files that a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SchemaKind {
    /// The resources in a folder
    Resources,
    /// domains.yaml at the top of a folder
    Domains,
    /// The policy of `xds serve --policy`
    Policy,
    /// The options of `xds serve --config`
    Options,
}

impl Schema {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let schema = match self.files {
            SchemaKind::Resources => schema::document(&self.descriptors.read()?),
            SchemaKind::Domains => schema::domains(),
            SchemaKind::Policy => policy::schema(),
            SchemaKind::Options => {
                let mut all = Cli::command();
                all.build();
                let serve = all.find_subcommand("serve").expect("there is a command `serve`");
                config::schema(serve)
            }
        };
        say(schema);
        Ok(())
    }
}

const EXAMPLES: &str = "\
Examples:
  xds schema > xds.schema.json                 then write as the first line of a file in this folder
                                               # yaml-language-server: $schema=xds.schema.json
  xds schema --descriptors own.binpb           with types of your own
  xds schema domains > domains.schema.json";
