// The precompiled headers of all rooms belong to this.
