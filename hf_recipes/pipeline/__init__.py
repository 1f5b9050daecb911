"""Pipeline parallelism: a decoder cut into stages by its layers, one stage a rank, trained by torch's own schedules."""
