// The precompiled headers of all test programs belong to this.
