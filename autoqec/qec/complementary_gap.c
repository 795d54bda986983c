/* Complementary gaps under fixed weights: by how much the weight of a shot's matching changes if the last node, which
 * stands for the observable (see logical_classes.py), has an event.
 *
 * All distances are computed once. If the cluster of the last node is small, its members suffice: other clusters have the
 * same weight in both logical classes. Else all events are matched, and the last node is inserted: the gap is the growth
 * of the tree from it. weighted_mwpm.c includes this file.
 */

/* Distances under fixed weights [edges], none below 0, for autoqec_gap_2: bound [nodes] to the boundary, and apart
 * [nodes][nodes], FAR if matching both nodes to the boundary is no longer. Returns -1 if out of memory, -2 if the
 * arrays describe no graph with such weights. */
int autoqec_distances_1(int32_t nodes, int32_t edges, const int32_t *ends, const int32_t *start, const int32_t *near,
                        const int32_t *via, const double *weights, double *bound, double *apart) {
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via};
    Search search = {0};
    double farthest = 0;
    if (!is_graph(&g)) return -2;
    for (int32_t e = 0; e < edges; e++)
        if (!(weights[e] >= 0 && weights[e] < FAR)) return -2;
    int ready = reserve_search(&search, &g);
    g.weights = weights;
    for (int32_t u = 0; ready && u < nodes; u++) {
        ready = explore(&g, &search, u, FAR, 1);
        bound[u] = search.bound;
        if (bound[u] > farthest) farthest = bound[u];
    }
    for (int32_t u = 0; ready && u < nodes; u++) {
        double *row = apart + (size_t)u * (size_t)nodes;
        ready = explore(&g, &search, u, bound[u] + farthest, 0);
        for (int32_t v = 0; v < nodes; v++) row[v] = search.dist[v] < bound[u] + bound[v] ? search.dist[v] : FAR;
    }
    release_search(&search);
    return ready ? 0 : -1;
}

/* Distances under fixed weights, for autoqec_gap_2. Pairs of nodes closer than `reach` are also listed by node. */
typedef struct {
    int32_t nodes;
    const double *bound, *apart; /* see autoqec_distances_1 */
    double reach;
    const int64_t *first_near;   /* [nodes + 1]: listed pairs of a node with lower ones */
    const int32_t *near;
    const double *near_apart;
} Table;

typedef struct {
    const Table *table;
    Blossoms blossoms;
    int32_t *fired, n_fired; /* [nodes]: nodes with events, ascending */
    int32_t *left;           /* [nodes]: those not known to be in the cluster */
    int32_t *vertex_of;      /* [nodes]: -1 without event, and between shots */
} GapMemory;

/* The cluster of the last node among the events: its members, that node first; 0 if it has more than SUBSET_MEMBERS. */
static int small_cluster(GapMemory *m, int32_t *member) {
    int32_t nodes = m->table->nodes, n = m->n_fired, size = 1;
    memcpy(m->left, m->fired, sizeof(int32_t) * (size_t)n);
    member[0] = nodes - 1;
    for (int i = 0; i < size; i++) {
        const double *row = m->table->apart + (size_t)member[i] * (size_t)nodes;
        for (int32_t k = 0; k < n;) {
            if (row[m->left[k]] == FAR) {
                k++;
                continue;
            }
            if (size == SUBSET_MEMBERS) return 0;
            member[size++] = m->left[k];
            m->left[k] = m->left[--n];
        }
    }
    return size;
}

/* Weight of the minimum-weight matching of a cluster less that without member 0, by dynamic programming over subsets;
 * FAR if there is none. */
static double growth_of_subsets(const Table *t, const int32_t *member, int size) {
    double least[1 << SUBSET_MEMBERS]; /* by subset; member 0 is the highest bit, as partners are lower bits */
    least[0] = 0;
    for (unsigned set = 1; set < 1u << size; set++) {
        int top = 31 - __builtin_clz(set);
        unsigned rest = set ^ 1u << top;
        const double *row = t->apart + (size_t)member[size - 1 - top] * (size_t)t->nodes;
        double best = t->bound[member[size - 1 - top]] + least[rest];
        for (unsigned left = rest; left; left &= left - 1) {
            int other = __builtin_ctz(left);
            double weight = row[member[size - 1 - other]] + least[rest ^ 1u << other];
            if (weight < best) best = weight;
        }
        least[set] = best < FAR ? best : FAR;
    }
    double with = least[(1u << size) - 1], without = least[(1u << (size - 1)) - 1];
    return with == FAR || without == FAR ? FAR : with - without;
}

/* Add pairs of an event, so that those closer than the sum of `known` of both are there. */
static int add_pairs(Blossoms *b, int32_t v) {
    const GapMemory *m = b->context;
    const double *row = m->table->apart + (size_t)m->fired[v] * (size_t)m->table->nodes;
    double before = b->node[v].known;
    b->node[v].known = 2 * before;
    for (int32_t u = 0; u < m->n_fired && !b->failed; u++) {
        double apart = row[m->fired[u]], known = b->node[u].known;
        if (apart < 2 * before + known && apart >= before + known && apart < FAR) add_pair(b, v, u, apart);
    }
    b->work += m->n_fired;
    return !b->failed;
}

/* The same by matching all events, and then one more at the last node. */
static double growth_of_events(GapMemory *m, int64_t most_work) {
    const Table *t = m->table;
    Blossoms *b = &m->blossoms;
    clear_blossoms(b, most_work, t->reach / 2);
    b->widen = add_pairs, b->context = m;
    for (int32_t v = 0; v < m->n_fired; v++) {
        int32_t node = m->fired[v];
        m->vertex_of[node] = add_vertex(b, t->bound[node], t->reach / 2);
        for (int64_t k = t->first_near[node]; k < t->first_near[node + 1]; k++)
            if (m->vertex_of[t->near[k]] >= 0) add_pair(b, v, m->vertex_of[t->near[k]], t->near_apart[k]);
    }
    const double *row = t->apart + (size_t)(t->nodes - 1) * (size_t)t->nodes;
    int32_t last = add_vertex(b, t->bound[t->nodes - 1], FAR);
    for (int32_t v = 0; v < last; v++)
        if (row[m->fired[v]] < FAR) add_pair(b, v, last, row[m->fired[v]]);
    double growth = FAR;
    for (int32_t v = 0; v < last && !b->failed; v++) insert(b, v);
    b->n = last;
    if (!b->failed && lift(b)) growth = insert(b, last);
    for (int32_t v = 0; v < last; v++) m->vertex_of[m->fired[v]] = -1;
    return b->failed ? FAR : growth;
}

/* Nodes with events of a bit-packed shot, ascending; *parity is the sum of their gauges. Returns their number. */
static int32_t read_events(const uint8_t *shot, int64_t row_bytes, const int32_t *node_of, const uint8_t *gauge,
                           int32_t *fired, int *parity) {
    int32_t n = 0;
    *parity = 0;
    for (int64_t byte = 0; byte < row_bytes; byte++)
        for (unsigned bits = shot[byte]; bits; bits &= bits - 1) {
            int32_t node = node_of[8 * byte + __builtin_ctz(bits)];
            if (node < 0) continue;
            fired[n++] = node;
            *parity ^= gauge[node];
        }
    return n;
}

/* Complementary gaps of bit-packed detection events [shots][row_bytes], little-endian. node_of [8 * row_bytes]: node of
 * each detector, -1 for those out of the sector. gauge [nodes] of 0 and 1: the last node, which stands for the
 * observable, has an event in the class "not flipped" if the gauges of the events sum to 1. Writes gap [shots], weight
 * of "flipped" minus weight of "not flipped", and work [shots], the half-edges that were looked at, or -1 for shots that
 * the caller must decode, as they need more than most_work. Returns -1 if out of memory, -2 if node_of names a node
 * twice, the last node, or none that exists. */
int autoqec_gap_2(const Table *table, int64_t most_work, int64_t shots, int64_t row_bytes, const int32_t *node_of,
                  const uint8_t *gauge, const uint8_t *events, float *gap, int64_t *work) {
    if (shots < 0 || row_bytes < 0 || table->nodes < 1 || table->nodes > MAX_NODES) return -2;
    size_t nodes = (size_t)table->nodes;
    GapMemory m = {.table = table, .fired = malloc(sizeof(int32_t) * nodes)};
    m.left = malloc(sizeof(int32_t) * nodes), m.vertex_of = malloc(sizeof(int32_t) * nodes);
    int status = m.fired && m.left && m.vertex_of ? 0 : -1, reserved = 0;
    if (status == 0 && !is_numbering(node_of, 8 * row_bytes, table->nodes - 1, (uint8_t *)m.left)) status = -2;
    for (size_t v = 0; status == 0 && v < nodes; v++) m.vertex_of[v] = -1;
    for (int64_t shot = 0; status == 0 && shot < shots; shot++) {
        const uint8_t *row = events + shot * row_bytes;
        int32_t member[SUBSET_MEMBERS];
        int parity;
        m.n_fired = read_events(row, row_bytes, node_of, gauge, m.fired, &parity);
        int size = small_cluster(&m, member);
        m.blossoms.work = 0;
        if (size == 0 && !reserved) {
            reserved = 1; /* not for single shots with small clusters */
            if (!reserve_blossoms(&m.blossoms, table->nodes)) status = -1;
        }
        if (status != 0) break;
        double growth = size > 0 ? growth_of_subsets(table, member, size) : growth_of_events(&m, most_work);
        work[shot] = growth < FAR ? m.blossoms.work : -1;
        if (growth < FAR) gap[shot] = (float)(parity ? -growth : growth);
    }
    release_blossoms(&m.blossoms), free(m.fired), free(m.left), free(m.vertex_of);
    return status;
}

/* Unite the last node, which becomes a vertex, and all nodes that are matched to the boundary by an edge to it, in one
 * outer node, as if they were a blossom: with a parity of its own they are a matching of all, and of any one less. */
static int32_t unite_last(Memory *m, const uint8_t *crosses, double first_reach) {
    Blossoms *b = &m->blossoms;
    int32_t last = add_vertex(b, m->no_boundary, first_reach / 2), root = b->capacity + b->blossoms;
    for (int32_t v = 0; v < last; v++) {
        Node *node = b->node + v;
        if (node->known < FAR) continue;
        node->known = node->bound < m->no_boundary ? node->bound : FAR; /* explored to the nearer boundary only */
        if (m->exit[v] < 0 || !crosses[m->exit[v]]) continue;
        add_pair(b, v, last, node->bound);
    }
    m->node_of[last] = m->g->nodes - 1;
    m->exit[last] = -1;
    if (b->failed || !widen(b, last)) return -1;
    b->node[last].dual = 0;
    b->node[root] = (Node){.mate = UNMATCHED, .child = last, .first = last, .last = last};
    b->node[last].top = root, b->node[last].inside = 1;
    for (int32_t v = 0; v < last; v++) {
        int32_t x = b->node[v].top;
        if (b->node[x].mate != TO_BOUNDARY(v) || !crosses[m->exit[v]]) continue;
        b->node[b->node[root].last].next = b->node[x].first;
        b->node[root].last = b->node[x].last;
        b->node[x].inside = 1;
        set_top(b, x, root);
    }
    for (int32_t v = 0; v < last; v++)
        if (m->exit[v] >= 0 && crosses[m->exit[v]]) b->node[v].bound = m->no_boundary; /* that of the other side */
    b->blossoms++;
    return root;
}

/* The same without a table, for graphs that are too large for one: distances are computed for each shot, as far as they
 * are needed. First the last node counts as the boundary, so that searches stay local. The matching is then that of one
 * class, and a tree that grows from the last node and all that is matched to it ends at the cost of the other.
 * Weights are [edges], none below 0. Returns -2 also if the arrays describe no graph with such weights. */
int autoqec_wide_gap_1(int32_t nodes, int32_t edges, const int32_t *ends, const int32_t *start, const int32_t *near,
                       const int32_t *via, const double *weights, int64_t most_work, int64_t shots, int64_t row_bytes,
                       const int32_t *node_of, const uint8_t *gauge, const uint8_t *events, float *gap, int64_t *work) {
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via, .weights = weights};
    Graph merged = g;
    Memory m = {0};
    double sum = 0;
    if (shots < 0 || row_bytes < 0 || !is_graph(&g)) return -2;
    for (int32_t e = 0; e < edges; e++) {
        if (!(weights[e] >= 0 && weights[e] < FAR)) return -2;
        sum += weights[e];
    }
    size_t links = (size_t)start[nodes + 1];
    uint8_t *crosses = calloc((size_t)edges + 1, 1);
    int32_t *merged_near = malloc(sizeof(int32_t) * (links + 1));
    int status = reserve(&m, &g) && crosses && merged_near ? 0 : -1;
    if (status == 0 && !is_numbering(node_of, 8 * row_bytes, nodes - 1, (uint8_t *)m.found)) status = -2;
    for (size_t k = 0; status == 0 && k < links; k++) {
        merged_near[k] = near[k] == nodes - 1 ? -1 : near[k];
        crosses[via[k]] |= near[k] == nodes - 1;
    }
    merged.near = merged_near;
    m.no_boundary = 2 * sum + 1;
    double first_reach = first_reach_of(&g, sum);
    for (int64_t shot = 0; status == 0 && shot < shots; shot++) {
        int parity;
        int32_t n = read_events(events + shot * row_bytes, row_bytes, node_of, gauge, m.node_of, &parity);
        double growth = FAR;
        m.g = &merged, m.search.end = -1;
        int matched = match_events(&m, n, first_reach, most_work);
        for (int32_t v = 0; matched && v < n; v++) {
            if (m.blossoms.node[m.blossoms.node[v].top].mate != TO_BOUNDARY(v)) continue;
            if (m.exit[v] < 0)
                matched = 0; /* an odd number of events without boundary */
            else
                parity ^= crosses[m.exit[v]];
        }
        if (matched) {
            m.g = &g, m.search.end = nodes - 1;
            int32_t root = unite_last(&m, crosses, first_reach);
            if (root >= 0) growth = grow(&m.blossoms, root);
        }
        work[shot] = growth < FAR ? m.blossoms.work : -1;
        if (growth < FAR) gap[shot] = (float)(parity ? -growth : growth);
    }
    release(&m), free(crosses), free(merged_near);
    return status;
}
