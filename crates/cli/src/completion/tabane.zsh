#compdef tabane
# Completion of tabane for zsh, as 'tabane completions zsh' prints it.

_tabane() {
  local -a found directories others
  local line value
  found=("${(@f)$(tabane complete-words "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
  found=(${found:#})
  if [[ $words[2] == run && $#found == 0 ]]; then
    _alternative 'commands:command:_command_names' 'files:file:_files'
    return
  fi
  for line in $found; do
    value=${line%%$'\t'*}
    value=${value//\\/\\\\}
    value=${value//:/\\:}
    if [[ $value == */ ]]; then
      directories+=("$value")
    else
      others+=("$value:${line#*$'\t'}")
    fi
  done
  [[ $#directories == 0 ]] || _describe -V 'directory' directories -S ''
  [[ $#others == 0 ]] || _describe -V 'word' others
}

_tabane "$@"
