mod bounds;
mod coverage;
mod large;
mod normal;
mod set;
mod vectors;
mod world;
