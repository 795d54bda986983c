/* Layers of a translation-invariant network on a few windows, with vectors of LANES floats.
 *
 * local_network.c includes this file once per instruction set, with LANES, TARGET (the attribute that selects it) and
 * NAMED, which makes the names of the functions differ. Every window gets the same operations in the same order,
 * whatever the others are, so that a shot's log-odds do not depend on its batch.
 */
typedef float NAMED(vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAMED(bits) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define VECTOR NAMED(vector)
#define AT(p) (*(VECTOR *)(p))
#define GET(p) (*(const VECTOR *)(p))
/* max(x, 0) that keeps NaN, so that a weight that is not finite shows in the output. */
#define RELU(x) ((VECTOR)((NAMED(bits))(x) & ~(NAMED(bits))((x) < 0)))

/* A residual layer on ROWS windows; weights [width + 1][width] by inputs, the last row is the bias. */
TARGET static void NAMED(layer)(const float *in, float *out, const float *weights, int width) {
    for (int j = 0; j < width; j += 2 * LANES) {
        VECTOR sum[ROWS][2];
        const float *bias = weights + (size_t)width * width + j, *column = weights + j;
        for (int r = 0; r < ROWS; r++) sum[r][0] = GET(bias), sum[r][1] = GET(bias + LANES);
        for (int k = 0; k < width; k++, column += width) {
            VECTOR left = GET(column), right = GET(column + LANES);
            for (int r = 0; r < ROWS; r++) {
                sum[r][0] += in[r * width + k] * left;
                sum[r][1] += in[r * width + k] * right;
            }
        }
        for (int r = 0; r < ROWS; r++) {
            const float *from = in + r * width + j;
            AT(out + r * width + j) = GET(from) + RELU(sum[r][0]);
            AT(out + r * width + j + LANES) = GET(from + LANES) + RELU(sum[r][1]);
        }
    }
}

/* A dense layer on one shot; weights [n_in + 1][n_out], see Dense. */
TARGET static void NAMED(dense)(const float *in, float *out, const float *weights, int n_in, int n_out, int kind) {
    for (int j = 0; j < n_out; j += 4 * LANES) {
        VECTOR sum[4];
        const float *column = weights + j, *bias = column + (size_t)n_in * n_out;
        for (int r = 0; r < 4; r++) sum[r] = GET(bias + r * LANES);
        for (int k = 0; k < n_in; k++, column += n_out)
            for (int r = 0; r < 4; r++) sum[r] += in[k] * GET(column + r * LANES);
        for (int r = 0; r < 4; r++) {
            VECTOR value = kind ? RELU(sum[r]) : sum[r];
            if (kind == DENSE_RESIDUAL) value += GET(in + j + r * LANES);
            AT(out + j + r * LANES) = value;
        }
    }
}

TARGET static float NAMED(total)(const VECTOR *sum) {
    float lane[LANES];
    memcpy(lane, sum, sizeof lane);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* The head of one window: linear (small == 0), or one hidden layer of `small` units; see Network. */
TARGET static float NAMED(head)(const float *in, const float *head, int width, int small) {
    VECTOR sum = GET(in) * 0;
    if (small == 0) {
        for (int j = 0; j < width; j += LANES) sum += GET(in + j) * GET(head + j);
        return NAMED(total)(&sum) + head[width];
    }
    const float *bias = head + (size_t)width * small, *last = bias + small;
    for (int j = 0; j < small; j += LANES) {
        VECTOR unit = GET(bias + j);
        for (int k = 0; k < width; k++) unit += in[k] * GET(head + (size_t)k * small + j);
        sum += RELU(unit) * GET(last + j);
    }
    return NAMED(total)(&sum) + last[small];
}

/* Map the first layers of a tile to log-odds; rows beyond its windows hold any numbers. */
TARGET static void NAMED(finish)(const Network *net, Tile *tile) {
    size_t stride = head_size(net);
    for (int layer = 0; layer < net->layers; layer++) {
        const float *weights = net->trunk + (size_t)layer * (net->width + 1) * net->width;
        for (int r = 0; r < tile->n; r += ROWS)
            NAMED(layer)(tile->in + (size_t)r * net->width, tile->out + (size_t)r * net->width, weights, net->width);
        float *swap = tile->in;
        tile->in = tile->out, tile->out = swap;
    }
    for (int r = 0; r < tile->n; r++) {
        const float *row = tile->in + (size_t)r * net->width, *head = net->heads + stride * tile->class[r];
        *tile->to[r] = tile->prior[r] + NAMED(head)(row, head, net->width, net->small);
    }
    tile->n = 0;
}

/* Add a window to the tile. tile->terms holds the rows that sum to its first layer, n >= 1 of them. */
TARGET static void NAMED(append)(const Network *net, Tile *tile, int32_t kind, int n, float prior, float *to) {
    float *out = tile->in + (size_t)tile->n * net->width;
    for (int j = 0; j < net->width; j += 2 * LANES) {
        VECTOR left = GET(tile->terms[0] + j), right = GET(tile->terms[0] + j + LANES);
        for (int i = 1; i < n; i++) {
            left += GET(tile->terms[i] + j);
            right += GET(tile->terms[i] + j + LANES);
        }
        AT(out + j) = RELU(left);
        AT(out + j + LANES) = RELU(right);
    }
    tile->class[tile->n] = net->class_of[kind];
    tile->prior[tile->n] = prior;
    tile->to[tile->n] = to;
    if (++tile->n == TILE) NAMED(finish)(net, tile);
}

/* Evaluate the windows of n slots, whose events are in `masks`. */
TARGET static void NAMED(windows)(const Network *net, Tile *tile, const uint64_t *masks, const int32_t *slots,
                                  int32_t n, float *row) {
    for (int32_t i = 0; i < n; i++) {
        int32_t slot = slots[i], kind = net->kind_of[slot];
        int terms = 1;
        tile->terms[0] = net->quiet + (size_t)kind * net->width;
        for (int32_t word = 0; word < net->words; word++) {
            const int32_t *rows = net->row_of + net->first_row[kind] + 64 * word;
            for (uint64_t mask = masks[(size_t)slot * net->words + word]; mask; mask &= mask - 1)
                tile->terms[terms++] = net->rows + (size_t)rows[__builtin_ctzll(mask)] * net->width;
        }
        NAMED(append)(net, tile, kind, terms, net->prior[slot], row + net->edge_of[slot]);
    }
}

static const Kernel NAMED(kernel) = {NAMED(append), NAMED(windows), NAMED(finish), NAMED(dense)};

#undef VECTOR
#undef AT
#undef GET
#undef RELU
#undef LANES
#undef TARGET
#undef NAMED
