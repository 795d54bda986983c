/* Log-odds of one shot from a dense network with ReLU (modules/mlp.py); local_network.c includes this file.
 *
 * The first layer and the linear path are sums of the columns of the detectors that fired. single_shot.py builds all
 * arrays, so their contents are not checked here.
 */
/* The same struct is declared in single_shot.py. Widths of layers are padded with zeros to a multiple of 64. */
typedef struct {
    int32_t width, outputs, layers;
    int32_t row_floats;    /* width, and outputs if there is a linear path */
    const int32_t *row_of; /* [bits]: row of a detector in columns, or -1 */
    const float *columns;  /* [inputs][row_floats] */
    const float *bias;     /* [width] */
    const float *prior;    /* [outputs] */
    const int32_t *shapes; /* [layers][3]: inputs, padded outputs, kind */
    const float *weights;  /* layer by layer, [inputs + 1][padded outputs], the bias last */
    int32_t widest;        /* padded width of any layer */
} Dense;

/* Write the log-odds [outputs] of a bit-packed shot [row_bytes], little-endian. Returns -1 if out of memory. */
int autoqec_dense_1(const Dense *net, int64_t row_bytes, const uint8_t *shot, float *log_odds) {
    const Kernel *kernel = kernel_of_processor();
    size_t widest = (size_t)net->widest;
    float *memory = malloc(sizeof(float) * (2 * widest + (size_t)net->row_floats));
    if (!memory) return -1;
    float *in = memory, *out = in + widest, *sums = out + widest;
    memcpy(sums, net->bias, sizeof(float) * (size_t)net->width);
    memset(sums + net->width, 0, sizeof(float) * (size_t)(net->row_floats - net->width));
    for (int64_t byte = 0; byte < row_bytes; byte++)
        for (unsigned bits = shot[byte]; bits; bits &= bits - 1) {
            int32_t row = net->row_of[8 * byte + __builtin_ctz(bits)];
            if (row < 0) continue;
            const float *column = net->columns + (size_t)row * (size_t)net->row_floats;
            for (int32_t k = 0; k < net->row_floats; k++) sums[k] += column[k];
        }
    for (int32_t k = 0; k < net->width; k++) in[k] = sums[k] < 0 ? 0 : sums[k]; /* keeps NaN */
    const float *weights = net->weights;
    for (int32_t layer = 0; layer < net->layers; layer++) {
        const int32_t *shape = net->shapes + 3 * layer;
        kernel->dense(in, out, weights, shape[0], shape[1], shape[2]);
        weights += (size_t)(shape[0] + 1) * (size_t)shape[1];
        float *swap = in;
        in = out, out = swap;
    }
    const float *path = net->row_floats > net->width ? sums + net->width : NULL;
    for (int32_t e = 0; e < net->outputs; e++) log_odds[e] = in[e] + (path ? path[e] + net->prior[e] : net->prior[e]);
    free(memory);
    return 0;
}
