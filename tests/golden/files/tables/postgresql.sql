CREATE TABLE allotments (
	installation TEXT NOT NULL,
	uid BIGINT NOT NULL,
	pool TEXT NOT NULL,
	number BIGINT NOT NULL,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	document JSON NOT NULL,
	CONSTRAINT pk_allotments PRIMARY KEY (installation, uid, pool, number),
	CONSTRAINT ck_allotments_number CHECK (number > 0)
)
CREATE TABLE answers (
	"user" TEXT NOT NULL,
	key TEXT NOT NULL,
	digest TEXT NOT NULL,
	answer JSON NOT NULL,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_answers PRIMARY KEY ("user", key)
)
CREATE INDEX ix_answers_at ON answers (at)
CREATE TABLE audit (
	id BIGSERIAL NOT NULL,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	"user" TEXT NOT NULL,
	action TEXT NOT NULL,
	object TEXT NOT NULL,
	status BIGINT NOT NULL,
	client TEXT NOT NULL,
	CONSTRAINT pk_audit PRIMARY KEY (id)
)
CREATE INDEX ix_audit_user ON audit ("user")
CREATE TABLE budgets (
	name TEXT NOT NULL,
	usd FLOAT(53) NOT NULL,
	CONSTRAINT pk_budgets PRIMARY KEY (name),
	CONSTRAINT ck_budgets_usd CHECK (usd >= 0)
)
CREATE TABLE claims (
	job_id TEXT NOT NULL,
	name TEXT NOT NULL,
	usd FLOAT(53) NOT NULL,
	before_usd FLOAT(53) NOT NULL,
	owner_pid BIGINT NOT NULL,
	owner_host TEXT NOT NULL,
	owner_started_at_s FLOAT(53) NOT NULL,
	owner_birth TEXT,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_claims PRIMARY KEY (job_id),
	CONSTRAINT ck_claims_owner_pid CHECK (owner_pid > 0),
	CONSTRAINT ck_claims_usd CHECK (usd >= 0),
	CONSTRAINT ck_claims_before_usd CHECK (before_usd >= 0)
)
CREATE INDEX ix_claims_name ON claims (name)
CREATE TABLE convergence (
	id BIGSERIAL NOT NULL,
	fingerprint_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	global_batch_size BIGINT NOT NULL,
	epochs FLOAT(53) NOT NULL,
	log_sd FLOAT(53) NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_convergence PRIMARY KEY (id),
	CONSTRAINT uq_convergence_job_id UNIQUE (job_id),
	CONSTRAINT ck_convergence_global_batch_size CHECK (global_batch_size > 0),
	CONSTRAINT ck_convergence_epochs CHECK (epochs > 0),
	CONSTRAINT ck_convergence_log_sd CHECK (log_sd >= 0),
	CONSTRAINT fk_convergence_fingerprint_id FOREIGN KEY(fingerprint_id) REFERENCES fingerprints (id),
	CONSTRAINT fk_convergence_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_convergence_fingerprint_id ON convergence (fingerprint_id)
CREATE TABLE desired (
	job_id TEXT NOT NULL,
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	document JSON NOT NULL,
	CONSTRAINT pk_desired PRIMARY KEY (job_id, provider, region),
	CONSTRAINT fk_desired_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)
CREATE TABLE events (
	id BIGSERIAL NOT NULL,
	job_id TEXT NOT NULL,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	level TEXT NOT NULL,
	kind TEXT NOT NULL,
	message TEXT NOT NULL,
	data JSON,
	CONSTRAINT pk_events PRIMARY KEY (id),
	CONSTRAINT ck_events_level CHECK (level IN ('info', 'warning', 'error')),
	CONSTRAINT fk_events_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_events_job_id_id ON events (job_id, id)
CREATE TABLE fingerprints (
	id TEXT NOT NULL,
	architecture TEXT NOT NULL,
	parameters BIGINT NOT NULL,
	optimizer TEXT NOT NULL,
	dataset_size BIGINT NOT NULL,
	sample_bytes BIGINT NOT NULL,
	goal TEXT NOT NULL,
	vm TEXT NOT NULL,
	hardware TEXT NOT NULL,
	CONSTRAINT pk_fingerprints PRIMARY KEY (id),
	CONSTRAINT ck_fingerprints_dataset_size CHECK (dataset_size > 0),
	CONSTRAINT ck_fingerprints_parameters CHECK (parameters >= 0),
	CONSTRAINT ck_fingerprints_sample_bytes CHECK (sample_bytes >= 0)
)
CREATE INDEX ix_fingerprints_architecture_dataset_size ON fingerprints (architecture, dataset_size)
CREATE TABLE indicators (
	id BIGSERIAL NOT NULL,
	job_id TEXT NOT NULL,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	first_step BIGINT NOT NULL,
	last_step BIGINT NOT NULL,
	count BIGINT NOT NULL,
	total BIGINT NOT NULL,
	content BYTEA NOT NULL,
	CONSTRAINT pk_indicators PRIMARY KEY (id),
	CONSTRAINT ck_indicators_count CHECK (count > 0),
	CONSTRAINT ck_indicators_total CHECK (total > 0),
	CONSTRAINT ck_indicators_first_step CHECK (first_step >= 0),
	CONSTRAINT fk_indicators_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_indicators_job_id_id ON indicators (job_id, id)
CREATE TABLE installation (
	id TEXT NOT NULL,
	CONSTRAINT pk_installation PRIMARY KEY (id)
)
CREATE TABLE intents (
	number BIGSERIAL NOT NULL,
	id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	slot BIGINT NOT NULL,
	generation BIGINT NOT NULL,
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	request JSON NOT NULL,
	price_usd_per_hour FLOAT(53) NOT NULL,
	disk_usd_per_hour FLOAT(53),
	address_usd_per_hour FLOAT(53) NOT NULL,
	reserved_usd FLOAT(53) NOT NULL,
	attempt BIGINT NOT NULL,
	state TEXT NOT NULL,
	asked BOOLEAN NOT NULL,
	instance_id TEXT NOT NULL,
	acks BIGINT NOT NULL,
	billed_s FLOAT(53) NOT NULL,
	spent_usd FLOAT(53) NOT NULL,
	disk_after_s FLOAT(53) NOT NULL,
	charged_at TIMESTAMP WITH TIME ZONE,
	launched_at TIMESTAMP WITH TIME ZONE,
	ended_at TIMESTAMP WITH TIME ZONE,
	ending TEXT NOT NULL,
	reason TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	last_ack_at TIMESTAMP WITH TIME ZONE,
	joined_at TIMESTAMP WITH TIME ZONE,
	taken_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_intents PRIMARY KEY (number),
	CONSTRAINT uq_intents_id UNIQUE (id),
	CONSTRAINT uq_intents_job_id_slot_generation UNIQUE (job_id, slot, generation),
	CONSTRAINT ck_intents_state CHECK (state IN ('PLAN', 'UP', 'DELETING', 'GONE')),
	CONSTRAINT ck_intents_ending CHECK (ending IN ('', 'unwanted', 'budget', 'never_joined', 'silent', 'died', 'preempted', 'unanswered', 'stock_out', 'quota', 'refused')),
	CONSTRAINT ck_intents_ended CHECK ((ending = '') = (state IN ('PLAN', 'UP'))),
	CONSTRAINT ck_intents_up CHECK (state != 'UP' OR instance_id != ''),
	CONSTRAINT ck_intents_asked CHECK (asked OR instance_id = ''),
	CONSTRAINT ck_intents_attempt CHECK (attempt > 0),
	CONSTRAINT ck_intents_price_usd_per_hour CHECK (price_usd_per_hour >= 0),
	CONSTRAINT ck_intents_slot CHECK (slot >= 0),
	CONSTRAINT ck_intents_generation CHECK (generation >= 0),
	CONSTRAINT ck_intents_reserved_usd CHECK (reserved_usd >= 0),
	CONSTRAINT ck_intents_acks CHECK (acks >= 0),
	CONSTRAINT ck_intents_billed_s CHECK (billed_s >= 0),
	CONSTRAINT ck_intents_spent_usd CHECK (spent_usd >= 0),
	CONSTRAINT ck_intents_disk_usd_per_hour CHECK (disk_usd_per_hour >= 0),
	CONSTRAINT ck_intents_address_usd_per_hour CHECK (address_usd_per_hour >= 0),
	CONSTRAINT ck_intents_disk_after_s CHECK (disk_after_s >= 0),
	CONSTRAINT fk_intents_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
)
CREATE INDEX ix_intents_state_provider_region ON intents (state, provider, region)
CREATE TABLE jobs (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	state TEXT NOT NULL,
	phase TEXT NOT NULL,
	detail TEXT NOT NULL,
	spec JSON NOT NULL,
	job_file TEXT NOT NULL,
	owner_pid BIGINT NOT NULL,
	owner_host TEXT NOT NULL,
	owner_started_at_s FLOAT(53) NOT NULL,
	owner_user TEXT,
	owner_uid BIGINT,
	owner_birth TEXT,
	owner_installation TEXT,
	heartbeat_at TIMESTAMP WITH TIME ZONE NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE,
	ended_at TIMESTAMP WITH TIME ZONE,
	step BIGINT,
	cost_usd FLOAT(53),
	fingerprint_id TEXT,
	chosen_vm TEXT,
	chosen_workers BIGINT,
	chosen_global_batch_size BIGINT,
	predicted JSON,
	actual JSON,
	report JSON,
	error TEXT NOT NULL,
	exit_code BIGINT,
	model_path TEXT,
	measurements_path TEXT,
	checkpoint TEXT,
	attempts BIGINT DEFAULT '1' NOT NULL,
	CONSTRAINT pk_jobs PRIMARY KEY (id),
	CONSTRAINT ck_jobs_state CHECK (state IN ('starting', 'profiling', 'planned', 'running', 'paused', 'succeeded', 'target_missed', 'failed', 'stopped', 'interrupted')),
	CONSTRAINT ck_jobs_ended CHECK ((ended_at IS NULL) = (state IN ('starting', 'profiling', 'running', 'paused'))),
	CONSTRAINT ck_jobs_chosen CHECK ((chosen_vm IS NULL) = (chosen_workers IS NULL) AND (chosen_vm IS NULL) = (chosen_global_batch_size IS NULL)),
	CONSTRAINT ck_jobs_chosen_size CHECK (chosen_workers > 0 AND chosen_global_batch_size >= chosen_workers),
	CONSTRAINT ck_jobs_owner_pid CHECK (owner_pid > 0),
	CONSTRAINT ck_jobs_attempts CHECK (attempts > 0),
	CONSTRAINT ck_jobs_step CHECK (step >= 0),
	CONSTRAINT ck_jobs_cost_usd CHECK (cost_usd >= 0),
	CONSTRAINT fk_jobs_fingerprint_id FOREIGN KEY(fingerprint_id) REFERENCES fingerprints (id)
)
CREATE INDEX ix_jobs_created_at ON jobs (created_at)
CREATE INDEX ix_jobs_ended_at ON jobs (ended_at)
CREATE INDEX ix_jobs_fingerprint_id ON jobs (fingerprint_id)
CREATE INDEX ix_jobs_name_created_at ON jobs (name, created_at)
CREATE INDEX ix_jobs_state ON jobs (state)
CREATE TABLE leases (
	name TEXT NOT NULL,
	holder TEXT NOT NULL,
	token BIGINT NOT NULL,
	beats BIGINT NOT NULL,
	CONSTRAINT pk_leases PRIMARY KEY (name),
	CONSTRAINT ck_leases_token CHECK (token > 0),
	CONSTRAINT ck_leases_beats CHECK (beats >= 0)
)
CREATE TABLE ledger (
	job_id TEXT NOT NULL,
	item TEXT NOT NULL,
	month TEXT NOT NULL,
	name TEXT NOT NULL,
	"user" TEXT NOT NULL,
	quantity FLOAT(53) NOT NULL,
	usd FLOAT(53) NOT NULL,
	basis TEXT NOT NULL,
	CONSTRAINT pk_ledger PRIMARY KEY (job_id, item, month),
	CONSTRAINT ck_ledger_item CHECK (item IN ('workers', 'vms', 'disks', 'addresses', 'traffic', 'share', 'leader', 'earlier', 'pool'))
)
CREATE INDEX ix_ledger_month ON ledger (month)
CREATE INDEX ix_ledger_name ON ledger (name)
CREATE TABLE measurements (
	id BIGSERIAL NOT NULL,
	job_id TEXT NOT NULL,
	vm TEXT NOT NULL,
	workers BIGINT NOT NULL,
	global_batch_size BIGINT NOT NULL,
	steps BIGINT NOT NULL,
	step_time_s FLOAT(53) NOT NULL,
	step_time_spread_s FLOAT(53) NOT NULL,
	compute_s FLOAT(53) NOT NULL,
	sync_s FLOAT(53) NOT NULL,
	gradient_noise FLOAT(53),
	noise_scale FLOAT(53),
	memory_bytes BIGINT NOT NULL,
	CONSTRAINT pk_measurements PRIMARY KEY (id),
	CONSTRAINT uq_measurements_job_id_vm_workers_global_batch_size UNIQUE (job_id, vm, workers, global_batch_size),
	CONSTRAINT ck_measurements_configuration CHECK (workers > 0 AND global_batch_size >= workers),
	CONSTRAINT ck_measurements_steps CHECK (steps > 0),
	CONSTRAINT ck_measurements_step_time_s CHECK (step_time_s > 0),
	CONSTRAINT ck_measurements_step_time_spread_s CHECK (step_time_spread_s >= 0),
	CONSTRAINT ck_measurements_compute_s CHECK (compute_s >= 0),
	CONSTRAINT ck_measurements_sync_s CHECK (sync_s >= 0),
	CONSTRAINT ck_measurements_memory_bytes CHECK (memory_bytes >= 0),
	CONSTRAINT fk_measurements_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE TABLE models (
	id TEXT NOT NULL,
	fingerprint_id TEXT NOT NULL,
	model TEXT NOT NULL,
	schema_version BIGINT NOT NULL,
	measurements BIGINT NOT NULL,
	runs BIGINT NOT NULL,
	job_id TEXT,
	origin TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_models PRIMARY KEY (id),
	CONSTRAINT ck_models_origin CHECK (origin IN ('local', 'imported')),
	CONSTRAINT ck_models_schema_version CHECK (schema_version > 0),
	CONSTRAINT ck_models_measurements CHECK (measurements >= 0),
	CONSTRAINT ck_models_runs CHECK (runs >= 0),
	CONSTRAINT fk_models_fingerprint_id FOREIGN KEY(fingerprint_id) REFERENCES fingerprints (id),
	CONSTRAINT fk_models_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE SET NULL
)
CREATE INDEX ix_models_created_at ON models (created_at)
CREATE INDEX ix_models_fingerprint_id ON models (fingerprint_id)
CREATE TABLE notifications (
	number BIGSERIAL NOT NULL,
	id TEXT NOT NULL,
	webhook TEXT NOT NULL,
	kind TEXT NOT NULL,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	text TEXT NOT NULL,
	data JSON NOT NULL,
	state TEXT NOT NULL,
	attempts BIGINT NOT NULL,
	due_at TIMESTAMP WITH TIME ZONE NOT NULL,
	error TEXT NOT NULL,
	CONSTRAINT pk_notifications PRIMARY KEY (number),
	CONSTRAINT ck_notifications_kind CHECK (kind IN ('ping', 'job.done', 'job.failed', 'job.stopped', 'job.paused', 'job.budget', 'user.budget', 'service.budget', 'vms.leftover')),
	CONSTRAINT ck_notifications_state CHECK (state IN ('waiting', 'delivered', 'refused')),
	CONSTRAINT ck_notifications_attempts CHECK (attempts >= 0),
	CONSTRAINT uq_notifications_webhook_id UNIQUE (webhook, id)
)
CREATE INDEX ix_notifications_state_webhook_due_at ON notifications (state, webhook, due_at)
CREATE TABLE operations (
	id BIGSERIAL NOT NULL,
	job_id TEXT NOT NULL,
	operation JSON NOT NULL,
	requested_by TEXT NOT NULL,
	state TEXT NOT NULL,
	message TEXT NOT NULL,
	requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE,
	ended_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_operations PRIMARY KEY (id),
	CONSTRAINT ck_operations_state CHECK (state IN ('pending', 'running', 'done', 'refused', 'failed')),
	CONSTRAINT ck_operations_ended CHECK ((ended_at IS NULL) = (state IN ('pending', 'running'))),
	CONSTRAINT ck_operations_started CHECK (state != 'pending' OR started_at IS NULL),
	CONSTRAINT fk_operations_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE INDEX ix_operations_job_id_id ON operations (job_id, id)
CREATE UNIQUE INDEX uq_operations_open ON operations (job_id) WHERE ended_at IS NULL
CREATE TABLE processes (
	job_id TEXT NOT NULL,
	process TEXT NOT NULL,
	role TEXT NOT NULL,
	pid BIGINT,
	state TEXT NOT NULL,
	detail TEXT NOT NULL,
	step BIGINT,
	view_number BIGINT,
	updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
	host TEXT,
	CONSTRAINT pk_processes PRIMARY KEY (job_id, process),
	CONSTRAINT ck_processes_role CHECK (role IN ('coordinator', 'worker', 'aggregator')),
	CONSTRAINT ck_processes_state CHECK (state IN ('starting', 'ready', 'training', 'leaving', 'lost', 'failed', 'gone')),
	CONSTRAINT ck_processes_pid CHECK (pid > 0),
	CONSTRAINT ck_processes_step CHECK (step >= 0),
	CONSTRAINT ck_processes_view_number CHECK (view_number >= 0),
	CONSTRAINT fk_processes_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
CREATE TABLE quarantine (
	provider TEXT NOT NULL,
	region TEXT NOT NULL,
	instance_id TEXT NOT NULL,
	vm TEXT NOT NULL,
	zone TEXT NOT NULL,
	job_id TEXT NOT NULL,
	launched_at TIMESTAMP WITH TIME ZONE,
	kept_by TEXT,
	CONSTRAINT pk_quarantine PRIMARY KEY (provider, region, instance_id)
)
CREATE TABLE restores (
	id BIGSERIAL NOT NULL,
	at TIMESTAMP WITH TIME ZONE NOT NULL,
	backup_at TIMESTAMP WITH TIME ZONE NOT NULL,
	token_floor BIGINT NOT NULL,
	looked_at TIMESTAMP WITH TIME ZONE,
	CONSTRAINT pk_restores PRIMARY KEY (id),
	CONSTRAINT ck_restores_token_floor CHECK (token_floor > 0)
)
CREATE TABLE servers (
	id TEXT NOT NULL,
	host TEXT NOT NULL,
	pid BIGINT NOT NULL,
	started_at_s FLOAT(53) NOT NULL,
	birth TEXT,
	installation TEXT,
	"user" TEXT NOT NULL,
	uid BIGINT NOT NULL,
	address TEXT NOT NULL,
	version TEXT NOT NULL,
	background BOOLEAN NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE NOT NULL,
	heartbeat_at TIMESTAMP WITH TIME ZONE NOT NULL,
	pools JSON,
	CONSTRAINT pk_servers PRIMARY KEY (id),
	CONSTRAINT ck_servers_pid CHECK (pid > 0),
	CONSTRAINT ck_servers_uid CHECK (uid >= 0)
)
CREATE TABLE submissions (
	number BIGSERIAL NOT NULL,
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	spec JSON NOT NULL,
	job_file TEXT NOT NULL,
	"user" TEXT NOT NULL,
	host TEXT NOT NULL,
	installation TEXT,
	uid BIGINT NOT NULL,
	rents BOOLEAN NOT NULL,
	reserved_usd FLOAT(53),
	audit BOOLEAN NOT NULL,
	priority BIGINT NOT NULL,
	idempotency_key TEXT,
	run BOOLEAN,
	study_workers BIGINT,
	environment TEXT,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	cancelling BOOLEAN NOT NULL,
	starts BIGINT NOT NULL,
	fruitless BIGINT NOT NULL,
	faults BIGINT,
	step BIGINT,
	submitted_at TIMESTAMP WITH TIME ZONE NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE,
	ended_at TIMESTAMP WITH TIME ZONE,
	standing JSON,
	CONSTRAINT pk_submissions PRIMARY KEY (number),
	CONSTRAINT uq_submissions_id UNIQUE (id),
	CONSTRAINT uq_submissions_user_idempotency_key UNIQUE ("user", idempotency_key),
	CONSTRAINT ck_submissions_state CHECK (state IN ('queued', 'running', 'ended', 'cancelled')),
	CONSTRAINT ck_submissions_ended CHECK ((ended_at IS NULL) = (state IN ('queued', 'running'))),
	CONSTRAINT ck_submissions_started CHECK (state != 'running' OR started_at IS NOT NULL),
	CONSTRAINT ck_submissions_uid CHECK (uid >= 0),
	CONSTRAINT ck_submissions_reserved_usd CHECK (reserved_usd >= 0),
	CONSTRAINT ck_submissions_study_workers CHECK (study_workers >= 0),
	CONSTRAINT ck_submissions_starts CHECK (starts >= 0),
	CONSTRAINT ck_submissions_fruitless CHECK (fruitless >= 0),
	CONSTRAINT ck_submissions_step CHECK (step >= 0)
)
CREATE INDEX ix_submissions_state_host_uid ON submissions (state, host, uid)
CREATE TABLE tokens (
	id BIGSERIAL NOT NULL,
	digest TEXT NOT NULL,
	"user" TEXT NOT NULL,
	label TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	expires_at TIMESTAMP WITH TIME ZONE,
	parent BIGINT,
	is_session BOOLEAN,
	CONSTRAINT pk_tokens PRIMARY KEY (id),
	CONSTRAINT uq_tokens_digest UNIQUE (digest),
	CONSTRAINT fk_tokens_user FOREIGN KEY("user") REFERENCES users (name) ON DELETE CASCADE
)
CREATE INDEX ix_tokens_parent ON tokens (parent)
CREATE INDEX ix_tokens_user ON tokens ("user")
CREATE TABLE users (
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT pk_users PRIMARY KEY (name),
	CONSTRAINT ck_users_role CHECK (role IN ('admin', 'user', 'viewer'))
)
